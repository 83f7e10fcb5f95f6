"""Megatron's indexed dataset, version 1, for Megatron-LM, NeMo, GPT-NeoX and MaxText's mmap: documents unpadded.

    NAME.bin   the tokens of all documents, uint16 or int32, nothing else
    NAME.idx   "MMIDIDX\\0\\0", uint64 version 1, uint8 code of the dtype, uint64 sequences, uint64 entries of `ends`,
               int32 [S] tokens of each sequence, int64 [S] byte where it begins, int64 [S + 1] `ends`: 0, 1, 2, …, S

Little endian. Source: NVIDIA/Megatron-LM, `megatron/core/datasets/indexed_dataset.py` (`_IndexWriter`, `DType`), which
takes uint16 for vocabularies of fewer than 65,500 tokens. A document is a sequence of its own: a row of `pad`, a
segment of `pack`, and in `concat`, whose records are one stream, what ends with EOS.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare.export import token_columns
from pipelines.prepare.export.export_settings import ExportSettings
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role

__all__ = ["check", "files"]

_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
_SMALL_VOCABULARY = 65_500
# What tokens and the ends of documents say already.
_HELD: tuple[Role, ...] = ("token_ids", "attention_mask", "num_tokens", "segment_ids", "positions")


def check(manifest: Manifest, settings: ExportSettings) -> None:
    """Raise ConfigError for features that this format has no room for, unless they are to be dropped."""
    settings.chosen(manifest.schema.names)
    lost = [
        each.name
        for each in manifest.schema.features
        if each.role not in _HELD and each.constant is None and each.name not in settings.dropped
    ]
    if lost:
        raise ConfigError(
            f"--to megatron: its files hold token ids alone, and {', '.join(lost)} would be lost",
            remedy=f"leave them out with {' '.join(f'--drop {name}' for name in lost)}, or export to parquet",
        )


def files(
    batches: Iterator[Mapping[str, np.ndarray]], manifest: Manifest, settings: ExportSettings
) -> dict[str, bytes]:
    """Return the contents of the two files by suffix."""
    del settings
    dtype = np.dtype(np.uint16 if manifest.tokenizer.vocab_size < _SMALL_VOCABULARY else np.int32)
    parts, counts = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
    for columns in batches:
        tokens = token_columns.is_token(columns, manifest)
        ids = token_columns.dense_or_ragged(columns[_ids_name(manifest)], tokens, dtype.type)
        segments = manifest.schema.values(columns, "segment_ids")
        documents = ids if segments is None else token_columns.segment_lengths(segments)
        assert documents.counts is not None
        parts.append(ids.values)
        counts.append(documents.counts if segments is None else documents.values)
    flat, lengths_S = np.concatenate(parts), np.concatenate(counts)
    if manifest.schema.with_role("num_tokens") is not None:
        lengths_S = _ended(flat, manifest)
    return {".bin": flat.tobytes(), ".idx": _index(lengths_S, dtype)}


def _ids_name(manifest: Manifest) -> str:
    feature = manifest.schema.with_role("token_ids")
    assert feature is not None, "a manifest has them"
    return feature.name


def _ended(flat: np.ndarray, manifest: Manifest) -> np.ndarray:
    """Return the lengths of documents in a stream of tokens: each ends with EOS, the last where the stream does."""
    facts = manifest.tokenizer
    end = facts.sep_id if facts.eos_id is None else facts.eos_id
    ends = np.flatnonzero(flat == (-1 if end is None else end)) + 1
    edges = np.unique(np.concatenate([[0], ends, [len(flat)]]))
    return np.diff(edges)


def _index(lengths_S: np.ndarray, dtype: np.dtype) -> bytes:
    sequences = len(lengths_S)
    begins_S = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths_S)])[:-1] * dtype.itemsize
    header = _MAGIC + struct.pack("<QBQQ", _VERSION, _CODES[dtype], sequences, sequences + 1)
    ends = np.arange(sequences + 1, dtype=np.int64)
    return header + lengths_S.astype(np.int32).tobytes() + begins_S.astype(np.int64).tobytes() + ends.tobytes()
