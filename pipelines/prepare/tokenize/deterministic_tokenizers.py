"""Tokenizers of which no dataset is made: those that may answer the same text in two ways, so that none could be made
again or checked, and those that would take all memory, or never end, before they give a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfrecord_io.errors import TokenizerError

__all__ = ["require_sound"]

_MAX_ID = 1 << 24
_NOT_ONE = "so that the same text gets other tokens each time, and no dataset of its tokens can be made again"


def require_sound(tokenizer: Any, name: str) -> None:
    """Raises: TokenizerError if the tokenizer gives tokens by chance, or has ids that no model has rows for."""
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    if sampling.get("enable_sampling"):
        raise TokenizerError(
            f"tokenizer {name!r} samples among segmentations (enable_sampling), {_NOT_ONE}",
            remedy="set enable_sampling to false in the sp_model_kwargs of its tokenizer_config.json",
        )
    if not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    if dropout := getattr(backend.model, "dropout", None):
        raise TokenizerError(
            f"tokenizer {name!r} leaves out merges by chance (BPE dropout {dropout:g}), {_NOT_ONE}",
            remedy='set "dropout" of the model to null in its tokenizer.json',
        )
    vocabulary = backend.get_vocab(with_added_tokens=False)
    _require_small_ids([*vocabulary.values(), *backend.get_added_tokens_decoder()], name)
    _require_different_ids(vocabulary, name)
    _require_different_texts(backend, name)


def _require_small_ids(ids: list[int], name: str) -> None:
    """When a tokenizer.json is written, a list is made of all ids below the largest that no entry has."""
    largest = max(ids, default=0)
    if largest > _MAX_ID:
        raise TokenizerError(
            f"tokenizer {name!r} has the id {largest}, expected none above {_MAX_ID}",
            remedy="number the entries of the vocabulary in its tokenizer.json from 0 on",
        )


def _require_different_ids(vocabulary: dict[str, int], name: str) -> None:
    """A tokenizer.json is written by ids: of two entries with one id, it has one or the other, by chance."""
    if len(set(vocabulary.values())) == len(vocabulary):
        return
    entry_of: dict[int, str] = {}
    for entry, number in sorted(vocabulary.items()):
        other = entry_of.setdefault(number, entry)
        if other != entry:
            raise TokenizerError(
                f"tokenizer {name!r}: {other!r} and {entry!r} of its vocabulary have the same id, {number}; of two "
                "such entries, a saved tokenizer keeps one, by chance",
                remedy="give each entry of the vocabulary an id of its own in its tokenizer.json",
            )


def _require_different_texts(backend: Any, name: str) -> None:
    """Of two added tokens that are looked for as the same text, either is found, by chance."""
    token_of: dict[str, str] = {}
    for text, content in _normalized(backend):
        if not text:
            raise TokenizerError(
                f"tokenizer {name!r}: nothing is left of its added token {content!r} once it is normalized, and "
                "`tokenizers` looks for nothing without end",
                remedy='take it out of "added_tokens" in its tokenizer.json, or make it "normalized": false',
            )
        other = token_of.setdefault(text, content)
        if other != content:
            first, second = sorted((other, content))
            raise TokenizerError(
                f"tokenizer {name!r}: its added tokens {first!r} and {second!r} are the same text, {text!r}, once they "
                "are normalized; which of them is found is chance",
                remedy='take one of them out of "added_tokens" in its tokenizer.json, or make it "normalized": false',
            )


def _normalized(backend: Any) -> Iterator[tuple[str, str]]:
    """What the added tokens that are looked for in normalized text are looked for as, and their contents."""
    normalize = backend.normalizer.normalize_str if backend.normalizer is not None else str
    for token in backend.get_added_tokens_decoder().values():
        if token.normalized:
            yield normalize(token.content), token.content
