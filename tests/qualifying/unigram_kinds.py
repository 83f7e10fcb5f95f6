"""Unigram tokenizers in the ways that models in use have them, each with the vocabulary of the tests' small one.

T5, XLM-R, ALBERT, Pegasus, RemBERT, DeBERTa, BigBird    normalizer and pre-tokenizer as `transformers` builds them
... converted                                            as it builds them from a SentencePiece file
nmt nfkc                                                 what `tokenizers` trains by itself
bytes                                                    with byte fallback, so that any other normalized text shows
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.support.charsmaps import nmt_nfkc

__all__ = ["ADDED", "NORMALIZERS", "altered", "metaspace", "white_split"]

Step = Mapping[str, Any]

ADDED = ("<tag>", "<tag>more", "word", "wor", " lead", "trail ", "  ", "é!", "\n\n", "中文", "<extra_id_0>")


def altered(
    state: Mapping[str, Any],
    *,
    normalizer: Step | None,
    pre_tokenizer: Step,
    added: list[AddedToken] | None = None,
    byte_fallback: bool = False,
    **model: Any,
) -> Any:
    """The tokenizer of a tokenizer.json with another normalizer and pre-tokenizer, and more tokens."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = list(state["model"]["vocab"])
    if byte_fallback:
        vocabulary += [[f"<0x{byte:02X}>", -12.5] for byte in range(256)]
    changed = {"vocab": vocabulary, "byte_fallback": byte_fallback, **model}
    state = {**state, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": {**state["model"], **changed}}
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_tokens(added or [])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **names)


def metaspace(scheme: str = "always", *, split: bool = True) -> Step:
    """Spaces become marks, of which each begins a word."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def white_split(scheme: str = "always") -> Step:
    """White space goes, then each word gets a mark."""
    return {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace(scheme)]}


def _chain(*steps: Step | str) -> Step:
    return {"type": "Sequence", "normalizers": [{"type": step} if isinstance(step, str) else step for step in steps]}


def _replace(pattern: str, content: str) -> Step:
    return {"type": "Replace", "pattern": {"Regex" if "{" in pattern else "String": pattern}, "content": content}


def _strip(*, left: bool, right: bool) -> Step:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def _normalizers() -> dict[str, tuple[Step | None, Step]]:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": nmt_nfkc()}
    quotes = (_replace("``", '"'), _replace("''", '"'))
    plain = ("NFKD", "StripAccents", "Lowercase", charsmap)
    one_space, one_mark = _replace(" {2,}", " "), _replace(" {2,}", "▁")
    return {
        "t5": (charsmap, white_split()),
        "t5 converted": (_chain(charsmap, _strip(left=False, right=True), one_mark), metaspace()),
        "t5 first": (_chain(charsmap, _strip(left=False, right=True), one_mark), metaspace("first")),
        "pegasus": (_chain(charsmap, one_space), metaspace()),
        "albert": (_chain(*quotes, *plain), white_split()),
        "albert converted": (_chain(*quotes, *plain, one_space), metaspace()),
        "rembert": (_chain(*quotes, one_space, *plain), metaspace()),
        "deberta": (_chain("Lowercase", _strip(left=True, right=True), charsmap, one_space), metaspace()),
        "bigbird": (_chain(_strip(left=False, right=False), one_mark), metaspace()),
        "nmt nfkc": (_chain("Nmt", "NFKC", one_space), metaspace()),
        "charsmap never": (charsmap, metaspace("never")),
        "white never": (charsmap, white_split("never")),
        "nfc": (_chain(_strip(left=True, right=True), "NFC"), white_split()),
        "nfd": (_chain("NFD"), metaspace()),
        "none": (None, metaspace()),
    }


NORMALIZERS = _normalizers()
