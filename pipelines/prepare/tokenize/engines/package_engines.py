"""Engines from other packages. If one fails on a batch, the reference engine encodes the batch."""

import abc
import importlib
import itertools
import json
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import pre_tokenizers

from pipelines.prepare.tokenize import library_failures
from pipelines.prepare.tokenize.engines.base import FastEngine, NotQualified, require_release, utf8_of
from pipelines.prepare.tokenize.ragged import RaggedTokens, from_lists
from tfrecord_io.shown import first_line

# The regular expressions of known byte-level tokenizers.
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGN = r"[^\r\n\p{L}\p{N}]"

LLAMA3 = rf"{_ENDINGS}|{_SIGN}?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN2 = rf"{_ENDINGS}|{_SIGN}?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN35 = rf"{_ENDINGS}|{_SIGN}?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
O200K = (
    rf"{_SIGN}?{_UPPER}*{_LOWER}+{_ENDINGS}?|{_SIGN}?{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
TEKKEN = rf"{_SIGN}?{_UPPER}*{_LOWER}+|{_SIGN}?{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
# Three expressions, applied in turn. The last one contains literal line ends.
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)

_SPLITS = [*([pattern] for pattern in (LLAMA3, QWEN2, QWEN35, O200K, TEKKEN)), list(DEEPSEEK)]
_NO_CHANGE = {"type": "Sequence", "normalizers": []}
_NORMALIZERS: tuple[dict[str, Any] | None, ...] = (None, _NO_CHANGE, {"type": "NFC"})
_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_MARK_ALL = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _MARK]}
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_ASCII = {f"<0x{byte:02X}>": chr(byte) for byte in range(128)}
_MAX_HOLES = 10_000
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}

_log = logging.getLogger(__name__)


class PackageEngine(FastEngine):
    """Base class of engines from other packages, for BPE that consists only of merges.

    `name`: name of the engine and its package. `tried`: the package's only supported release. `byte_fallback`: whether
    the tokenizer's model must have byte fallback; if False, it must not.
    """

    tried: str
    byte_fallback: bool

    def _open(self, parts: dict[str, Any]) -> None:
        # These parts do not affect the ids of a text.
        parts = {**parts, **dict.fromkeys(("post_processor", "decoder", "truncation", "padding"))}
        model = parts["model"]
        if model["type"] != "BPE":
            raise NotQualified(f"its model is {model['type']}, not BPE")
        if bool(model["byte_fallback"]) is not self.byte_fallback:
            raise NotQualified("its BPE has no byte fallback" if self.byte_fallback else "its BPE has byte fallback")
        for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
            if model[setting]:
                raise NotQualified(f"its BPE has a {setting}")
        self._require(parts)
        self.version = require_release(self.name, tried=self.tried)
        cause = f"{self.name} cannot open this tokenizer"
        with library_failures.raised_as(lambda error: NotQualified(f"{cause}: {first_line(error)}")):
            self._backend = self._open_package(importlib.import_module(self.name), parts)

    def encode(self, texts: pa.Array) -> RaggedTokens:
        if not len(texts):
            return from_lists([], dtype=self._dtype)
        try:
            return self._encode(texts)
        except BaseException as error:  # a limit of the package's regular expressions, or a panic
            if not library_failures.is_of_library(error):
                raise
            _log.debug("%s fails on a batch, which the reference encodes instead", self.name, exc_info=True)
            return self._reference.encode(texts)

    @abc.abstractmethod
    def _require(self, parts: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def _open_package(self, package: Any, parts: dict[str, Any]) -> Any: ...

    @abc.abstractmethod
    def _encode(self, texts: pa.Array) -> RaggedTokens:
        """Return the tokens of at least one text."""


class FastokensEngine(PackageEngine):
    """Engine for byte-level BPE with the package `fastokens`, which encodes without Python's interpreter lock.

    The reference engine encodes texts with a long s (ſ), which the package may split differently.
    """

    name = "fastokens"
    tried = "0.3.5"
    byte_fallback = False

    def _require(self, parts: dict[str, Any]) -> None:
        vocabulary = parts["model"]["vocab"]
        if not vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet()):
            raise NotQualified("its vocabulary has no entry for some bytes")
        if max(vocabulary.values()) >= len(vocabulary) + _MAX_HOLES:
            raise NotQualified(f"the ids of its vocabulary have more than {_MAX_HOLES:,} gaps")
        # The reference engine drops an added token if the token before it takes the white space at its start.
        added = parts["added_tokens"]
        if any(token["rstrip"] for token in added) and any(token["content"][0].isspace() for token in added):
            raise NotQualified("one of its added tokens takes white space that may belong to another one")
        if parts["normalizer"] not in _NORMALIZERS:
            raise NotQualified("it has a normalizer other than NFC")
        if not _splits_as_tried(_isolated(parts["pre_tokenizer"] or {})):
            raise NotQualified("its pre-tokenizer is not one of those that are qualified, such as GPT-2's")

    def _open_package(self, package: Any, parts: dict[str, Any]) -> Any:
        # Only with a normalizer does the package search for added tokens in the raw text, then in the normalized rest.
        kinds = {token["normalized"] for token in parts["added_tokens"]}
        if parts["normalizer"] is None and len(kinds) == 2:
            parts = {**parts, "normalizer": _NO_CHANGE}
        parts = {**parts, "pre_tokenizer": _isolated(parts["pre_tokenizer"])}
        # The package rejects gaps in the ids. No word or merge uses the entries that fill them, because of the space.
        vocabulary = parts["model"]["vocab"]
        holes = set(range(max(vocabulary.values()))) - set(vocabulary.values())
        if holes:
            taken = vocabulary.keys() | {token["content"] for token in parts["added_tokens"]}
            names = (name for number in itertools.count() if (name := f" {number}") not in taken)
            filled = vocabulary | dict(zip(names, sorted(holes), strict=False))
            parts = {**parts, "model": {**parts["model"], "vocab": filled}}
        return package.Tokenizer.from_json_str(json.dumps(parts, ensure_ascii=False))

    def _encode(self, texts: pa.Array) -> RaggedTokens:
        ids, offsets = self._backend.encode_batch_flat(
            texts.to_pylist(),
            add_special_tokens=False,
            split_special_tokens=self._reference.backend.encode_special_tokens,
        )
        runs = RaggedTokens(
            np.frombuffer(ids, "<u4").astype(self._dtype), np.frombuffer(offsets, "<u8").astype(np.int64)
        )
        asked = np.flatnonzero(pc.match_substring_regex(texts, "\u017f"))  # 20 times as fast as `match_substring`
        return self._reference.put_into(runs, texts, asked) if len(asked) else runs


def _isolated(pre_tokenizer: dict[str, Any]) -> dict[str, Any]:
    # Supported expressions match every character, so isolating the matches equals keeping only them.
    steps = pre_tokenizer.get("pretokenizers", [])
    if len(steps) != 2 or not (steps[0].get("behavior") == "Removed" and steps[0]["invert"]):
        return pre_tokenizer
    return {**pre_tokenizer, "pretokenizers": [{**steps[0], "behavior": "Isolated", "invert": False}, steps[1]]}


def _splits_as_tried(pre_tokenizer: dict[str, Any]) -> bool:
    if pre_tokenizer.get("type") == "ByteLevel":
        return bool(pre_tokenizer["use_regex"])
    steps = pre_tokenizer.get("pretokenizers", [])
    if len(steps) < 2 or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return False
    if steps[-1]["use_regex"]:
        return steps[:-1] == [{"type": "Digits", "individual_digits": True}]
    plain = all(
        step["type"] == "Split" and step["behavior"] == "Isolated" and not step["invert"] for step in steps[:-1]
    )
    return plain and [step["pattern"].get("Regex") for step in steps[:-1]] in _SPLITS


class GigatokenEngine(PackageEngine):
    """Engine for SentencePiece's BPE with the package `gigatoken`, which encodes without Python's interpreter lock.

    For batches of a megabyte or more, the package uses its own threads.
    """

    name = "gigatoken"
    tried = "0.10.0"
    byte_fallback = True

    def _require(self, parts: dict[str, Any]) -> None:
        model = parts["model"]
        if model["ignore_merges"]:
            raise NotQualified("its BPE ignores merges")
        # An ASCII character may be in the vocabulary, instead of an entry for its byte.
        missing = _BYTES - model["vocab"].keys()
        if not all(_ASCII.get(entry) in model["vocab"] for entry in missing):
            raise NotQualified("its vocabulary has no entry for some bytes")
        if model["unk_token"] is not None and model["unk_token"] not in model["vocab"]:
            raise NotQualified("its vocabulary has no entry for unknown text")
        for entry in model["vocab"]:  # the package takes every entry of the form <0x..> for a byte
            like_byte = entry.startswith("<0x") and entry.endswith(">") and len(entry.encode()) == len("<0x00>")
            if like_byte and entry not in _BYTES:
                raise NotQualified(f"its entry {entry!r} looks like an entry for a byte")
        for left, right in model["merges"]:
            if right in _BYTES or (left[:1] == "<" and (left in _BYTES or left + right in _BYTES)):
                raise NotQualified(f"its merge of {left!r} and {right!r} makes or uses an entry for a byte")
        if self._reference.backend.encode_special_tokens:
            raise NotQualified("it splits special tokens")
        for flag in ("rstrip", "single_word"):
            if any(token[flag] for token in parts["added_tokens"]):
                raise NotQualified(f"one of its added tokens has the flag {flag}")
        if not _marks_as_tried(parts["normalizer"], parts["pre_tokenizer"]):
            raise NotQualified("its normalizer and pre-tokenizer do not mark spaces in a qualified way")

    def _open_package(self, package: Any, parts: dict[str, Any]) -> Any:
        importlib.import_module("awkward")
        if parts["normalizer"] == _MARK:  # then no space is left where the package could split the text
            parts = {**parts, "pre_tokenizer": _AT_SPACES}
        return package.Tokenizer.from_json(json.dumps(parts, ensure_ascii=False))

    def _encode(self, texts: pa.Array) -> RaggedTokens:
        awkward = importlib.import_module("awkward")
        data, edges = utf8_of(texts)
        letters = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
        index = awkward.index.Index64(edges)
        strings = awkward.contents.ListOffsetArray(index, letters, parameters={"__array__": "string"})
        rows = self._backend.encode_batch(awkward.Array(strings)).layout.to_ListOffsetArray64(True)
        offsets = np.asarray(rows.offsets.data)
        ids = np.asarray(rows.content.data)[: offsets[-1]]
        return RaggedTokens(ids.astype(self._dtype), offsets.astype(np.int64))


def _marks_as_tried(normalizer: dict[str, Any] | None, pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return normalizer in (_MARK_ALL, _MARK)
    if pre_tokenizer["type"] == "Metaspace":
        return normalizer is None and pre_tokenizer["replacement"] == "▁"
    return normalizer == _MARK and pre_tokenizer == _AT_SPACES
