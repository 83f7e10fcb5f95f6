"""What a decoder starts from, and the names of its inputs."""

from __future__ import annotations

from typing import Literal, get_args

from tfrecord_io.errors import ReaderError
from tfrecord_io.manifest import Manifest

__all__ = ["DECODER_INPUTS", "DECODER_MASK", "StartToken", "start_id"]

# The inputs that are no features of the dataset.
DECODER_INPUTS, DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"

StartToken = Literal["pad", "bos", "eos", "cls", "sep"]


def start_id(manifest: Manifest, token: StartToken | int) -> int:
    """The id that a decoder starts from. Raises: ReaderError if the vocabulary has no such token."""
    if isinstance(token, str):
        return _named_id(manifest, token)
    size = manifest.tokenizer.vocab_size
    if isinstance(token, bool) or not 0 <= token < size:
        raise ReaderError(f"decoder_start_id is {token}, expected an id of the vocabulary, 0 to {size - 1}")
    return token


def _named_id(manifest: Manifest, token: StartToken) -> int:
    if token not in get_args(StartToken):
        raise ReaderError(f"decoder_start_id is {token!r}, expected an id, or one of {list(get_args(StartToken))}")
    found: int | None = getattr(manifest.tokenizer, f"{token}_id")
    if found is None:
        raise ReaderError(
            f"dataset {manifest.name!r}: tokenizer {manifest.tokenizer.name!r} has no {token.upper()} token to start "
            "the decoder from",
            remedy="give decoder_start_id as the model's configuration states it",
        )
    return found
