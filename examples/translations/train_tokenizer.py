"""Trains the small tokenizer of this example: `python examples/translations/train_tokenizer.py [OUTDIR]`.

    train.jsonl, both columns ──► byte-level BPE ──► `tokens </s>`, as encoder-decoder models want their rows ──► OUTDIR

The folder loads with `transformers.AutoTokenizer.from_pretrained(OUTDIR)`, without a network, and is the same bytes on
every run.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence

# It would say that it found no PyTorch, which nothing here needs.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TRAIN_FILE = pathlib.Path(__file__).parent / "train.jsonl"
FOLDER = "out/tokenizers/translations"
SPECIAL_TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
VOCAB_SIZE = 500
MAX_LENGTH = 128


def train(texts: Sequence[str], *, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """A tokenizer that knows every byte, gives input_ids and attention_mask, and ends each row with </s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    eos = SPECIAL_TOKENS["eos"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items()},
    )


def read_texts(path: pathlib.Path) -> list[str]:
    """Both texts of every line of a JSON lines file."""
    with path.open(encoding="utf-8") as lines:
        return [text for line in lines for text in json.loads(line).values()]


def main(arguments: Sequence[str]) -> int:
    """The command line: at most one argument, the folder to write."""
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        print("usage: python examples/translations/train_tokenizer.py [OUTDIR]", file=sys.stderr)
        return 2
    tokenizer = train(read_texts(TRAIN_FILE))
    folder = arguments[0] if arguments else FOLDER
    tokenizer.save_pretrained(folder)
    print(f"{folder}: byte-level BPE tokenizer, {len(tokenizer)} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
