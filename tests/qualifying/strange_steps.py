"""Normalizers, pre-tokenizers and post-processors of strange tokenizers: every one of them, in any order.

Those that a fast engine may serve come more often than others, or hardly any tokenizer would be tried at all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

from tokenizers import processors

from pipelines.prepare.tokenize.engines import split_patterns as patterns
from tests.support.charsmaps import nmt_nfkc

__all__ = ["Step", "bert_normalizer", "byte_level_split", "metaspace", "normalizer", "post_processor", "pre_tokenizer"]

Step: TypeAlias = dict[str, Any]

_PATTERNS = ([patterns.LLAMA3], [patterns.QWEN2], [patterns.QWEN35], [patterns.O200K], [patterns.TEKKEN])
_SCHEMES = ("always", "first", "never")
_BEHAVIORS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_UNSERVED = ("Prepend", "BertNormalizer", "Expression")
_KINDS = (
    *("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Nmt", "Nmt", "Lowercase", "Lowercase", "StripAccents"),
    *("StripAccents", "Strip", "Strip", "Replace", "Replace", "Replace", "Spaces", *_UNSERVED),
)
_REPLACED = (" ", "\x0b", "f", "é", "\u0301", "-", "``", "''", "  ", "▁", "\n", "the")
_CONTENTS = ("", "", " ", "▁", '"', "a", "\u0301", "  ")


def _flag(rng: random.Random) -> bool:
    return rng.random() < 0.5


def normalizer(rng: random.Random) -> Step | None:
    """None, one step or a chain, now and then a chain in a chain."""
    kinds = _KINDS if rng.random() < 0.3 else [kind for kind in _KINDS if kind not in _UNSERVED]
    steps = [_normalizer_step(rng, kinds) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))]
    if not steps:
        return None
    if len(steps) > 2 and rng.random() < 0.3:
        steps = [{"type": "Sequence", "normalizers": steps[:2]}, *steps[2:]]
    return steps[0] if len(steps) == 1 and _flag(rng) else {"type": "Sequence", "normalizers": steps}


def _normalizer_step(rng: random.Random, kinds: Sequence[str]) -> Step:
    kind = rng.choice(kinds)
    if kind == "Strip":
        return {"type": kind, "strip_left": _flag(rng), "strip_right": _flag(rng)}
    if kind == "Replace":
        return {"type": kind, "pattern": {"String": rng.choice(_REPLACED)}, "content": rng.choice(_CONTENTS)}
    if kind == "Spaces":
        return {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": rng.choice((" ", "▁"))}
    if kind == "Expression":
        pattern = rng.choice((r"\s+", "[aeiou]", r"^\s", " {2,}"))
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": rng.choice((" ", "▁", ""))}
    if kind == "Precompiled":
        return {"type": kind, "precompiled_charsmap": nmt_nfkc()}
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(("▁", " ", "a", "\u0301"))}
    return bert_normalizer(rng) if kind == "BertNormalizer" else {"type": kind}


def bert_normalizer(rng: random.Random) -> Step:
    """BERT's, with any settings."""
    flags = {name: _flag(rng) for name in ("clean_text", "handle_chinese_chars", "lowercase")}
    return {"type": "BertNormalizer", "strip_accents": rng.choice((None, True, False)), **flags}


def metaspace(rng: random.Random) -> Step:
    """Metaspace of any scheme; seldom with another mark than usual, or without a split."""
    mark = "_" if rng.random() < 0.05 else "▁"
    scheme, split = rng.choice(_SCHEMES), rng.random() < 0.95
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": split}


def byte_level_split(rng: random.Random) -> Step:
    """What models of bytes are split by: GPT-2's pattern, after single digits or not, or another model's patterns."""
    kind = rng.random()
    if kind < 0.4:
        return _byte_level(rng, use_regex=rng.random() < 0.95)
    if kind < 0.55:
        digits = {"type": "Digits", "individual_digits": rng.random() < 0.9}
        return _sequence([digits, _byte_level(rng, use_regex=True)])
    expressions = list(patterns.DEEPSEEK) if kind < 0.62 else rng.choice(_PATTERNS)
    behavior = "Isolated" if rng.random() < 0.95 else rng.choice(_BEHAVIORS)
    splits = [_split({"Regex": each}, behavior=behavior) for each in expressions]
    last = {**_byte_level(rng, use_regex=False), "add_prefix_space": rng.random() < 0.05}
    return _sequence([*splits, last])


def _byte_level(rng: random.Random, *, use_regex: bool) -> Step:
    return {"type": "ByteLevel", "add_prefix_space": _flag(rng), "trim_offsets": _flag(rng), "use_regex": use_regex}


def _split(pattern: Step, *, behavior: str, invert: bool = False) -> Step:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def _sequence(steps: list[Step]) -> Step:
    return {"type": "Sequence", "pretokenizers": steps}


def pre_tokenizer(rng: random.Random) -> Step | None:
    """Any pre-tokenizer, or up to three of them."""
    steps = [_pre_tokenizer_step(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
    if not steps:
        return None
    return steps[0] if len(steps) == 1 and _flag(rng) else _sequence(steps)


def _pre_tokenizer_step(rng: random.Random) -> Step:
    kind = rng.choice(
        (
            *("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts", "Metaspace", "Metaspace"),
            *("ByteLevel", "Punctuation", "Digits", "CharDelimiterSplit", "Split"),
        )
    )
    if kind == "Metaspace":
        return metaspace(rng)
    if kind == "ByteLevel":
        return _byte_level(rng, use_regex=_flag(rng))
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(_BEHAVIORS)}
    if kind == "Digits":
        return {"type": kind, "individual_digits": _flag(rng)}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice(" -a")}
    if kind == "Split":
        pattern = rng.choice(({"String": " "}, {"String": "a"}, {"Regex": r"\s+"}, {"Regex": r"\p{L}+"}))
        return _split(pattern, behavior=rng.choice(_BEHAVIORS), invert=_flag(rng))
    return {"type": kind}


def post_processor(rng: random.Random, *, first: tuple[str, int], last: tuple[str, int]) -> Any:
    """What puts special tokens around texts: templates of all forms, BERT's, RoBERTa's, or nothing.

    Args:
        first, last: special tokens and their ids.
    """
    kind = rng.random()
    if kind < 0.15:
        return None
    if kind < 0.25:
        return processors.BertProcessing(last, first)
    if kind < 0.35:
        return processors.RobertaProcessing(last, first, trim_offsets=_flag(rng), add_prefix_space=_flag(rng))
    if kind < 0.4:
        return processors.ByteLevel(trim_offsets=_flag(rng))
    (cls, _), (sep, _) = first, last
    single, pair = rng.choice(
        (
            (f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"),
            (f"{cls} $A", f"{cls} $A {cls} $B"),
            (f"$A {sep}", f"$A {sep} $B {sep}"),
            (f"$A:0 {sep}:0 {cls}:2", f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
            ("$A", "$A $B:1"),
        )
    )
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[first] + [last] * (first != last))
