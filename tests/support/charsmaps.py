"""SentencePiece's `precompiled_charsmap` in base 64, as its own trainer writes it into models: T5's, and any other."""

import base64
import functools
import io
import tempfile
from collections.abc import Mapping
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2


@functools.cache
def nmt_nfkc() -> str:
    return _trained(normalization_rule_name="nmt_nfkc")


def charsmap(rules: Mapping[str, str]) -> str:
    """The table of these rules: what becomes of texts that are not empty."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for rule in rules.items():
            file.write("\t".join(" ".join(f"{ord(letter):X}" for letter in text) for text in rule) + "\n")
        file.flush()
        return _trained(normalization_rule_tsv=file.name)


def _trained(**options: Any) -> str:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a"]), model_writer=model, model_type="char", vocab_size=5, minloglevel=2, **options
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
