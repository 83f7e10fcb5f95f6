"""Checks that refuse tokenizers with which no reproducible dataset can be made.

These are tokenizers that may give a text different tokens each time, so that no dataset could be made again or checked,
and those that would exhaust memory or never return.
"""

from __future__ import annotations

from typing import Any

from tfrecord_io.errors import TokenizerError

_MAX_ID = 1 << 24
_NOT_REPRODUCIBLE = "so the same text gets other tokens each time, and no dataset of its tokens can be made again"


def require_deterministic(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that may give a text different tokens each time.

    Raises: TokenizerError if its tokens depend on chance, or its ids or added tokens are unusable.
    """
    sampling = getattr(tokenizer, "sp_model_kwargs", None) or {}
    if sampling.get("enable_sampling"):
        raise TokenizerError(
            f"tokenizer {name!r} samples among segmentations (enable_sampling), {_NOT_REPRODUCIBLE}",
            remedy="set enable_sampling to false in the sp_model_kwargs of its tokenizer_config.json",
        )
    if not tokenizer.is_fast:
        return
    backend = tokenizer.backend_tokenizer
    if dropout := getattr(backend.model, "dropout", None):
        raise TokenizerError(
            f"tokenizer {name!r} leaves out merges by chance (BPE dropout {dropout:g}), {_NOT_REPRODUCIBLE}",
            remedy='set "dropout" of the model to null in its tokenizer.json',
        )
    vocabulary = backend.get_vocab(with_added_tokens=False)
    # Writing a tokenizer.json makes a list of all unused ids below the largest.
    largest = max([*vocabulary.values(), *backend.get_added_tokens_decoder()], default=0)
    if largest > _MAX_ID:
        raise TokenizerError(
            f"tokenizer {name!r} has the id {largest}, expected none above {_MAX_ID}",
            remedy="number the entries of the vocabulary in its tokenizer.json from 0 on",
        )
    _require_different_ids(vocabulary, name)
    _require_different_texts(backend, name)


def _require_different_ids(vocabulary: dict[str, int], name: str) -> None:
    """Refuse two entries with one id: a tokenizer.json is written by ids, and gets either entry by chance."""
    if len(set(vocabulary.values())) == len(vocabulary):
        return
    entry_of: dict[int, str] = {}
    for entry, number in sorted(vocabulary.items()):
        other = entry_of.setdefault(number, entry)
        if other != entry:
            raise TokenizerError(
                f"tokenizer {name!r}: {other!r} and {entry!r} of its vocabulary have the same id, {number}; a saved "
                "tokenizer keeps only one of them, by chance",
                remedy="give each entry of the vocabulary an id of its own in its tokenizer.json",
            )


def _require_different_texts(backend: Any, name: str) -> None:
    """Refuse two added tokens that are searched for as the same text: either is found by chance."""
    normalize = backend.normalizer.normalize_str if backend.normalizer is not None else str
    token_of: dict[str, str] = {}
    for content in (token.content for token in backend.get_added_tokens_decoder().values() if token.normalized):
        text = normalize(content)
        if not text:
            raise TokenizerError(
                f"tokenizer {name!r}: nothing is left of its added token {content!r} once it is normalized, and "
                "`tokenizers` would search for the empty text forever",
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
