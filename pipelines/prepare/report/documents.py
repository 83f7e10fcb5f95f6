"""Documents in records: which positions hold tokens, and where each document begins and ends.

layout        a document is                                told apart by
pack, chat    a segment (one of several in a row)          segment_ids
concat        what stands between two end tokens           the EOS token that --special-tokens puts there
all others    the row                                      its padding
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.prepare.report.sampled_records import SampledRecords
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role

__all__ = ["Documents", "documents_of", "token_positions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents:
    """D documents of some records: tokens, first and last id, int64 [D] each. Where rows cut documents apart, only
    ends that are in a record are known: `first` and `last` then have fewer, and `lengths` none.
    """

    lengths: np.ndarray
    first: np.ndarray
    last: np.ndarray


def token_positions(columns: Mapping[str, np.ndarray], manifest: Manifest) -> np.ndarray:
    """Return which positions of the inputs hold tokens rather than padding, bool [N, L]."""
    schema = manifest.schema
    marked: tuple[Role, ...] = ("segment_ids", "attention_mask")
    for role in marked:
        if (values := schema.values(columns, role)) is not None:
            return np.asarray(values > 0)
    num_tokens = schema.values(columns, "num_tokens")
    assert num_tokens is not None, "a manifest says which tokens are padding"
    return np.asarray(np.arange(manifest.row_length) < num_tokens[:, None])


def documents_of(parts: Sequence[SampledRecords]) -> Documents:
    """Return the documents of all parts."""
    found = [_documents(part.columns, part.manifest) for part in parts]
    names = [field.name for field in dataclasses.fields(Documents)]
    empty = np.zeros(0, np.int64)
    return Documents(**{name: np.concatenate([empty, *(getattr(each, name) for each in found)]) for name in names})


def _documents(columns: Mapping[str, np.ndarray], manifest: Manifest) -> Documents:
    ids = manifest.schema.values(columns, "token_ids")
    assert ids is not None, "a manifest has them"
    tokens = token_positions(columns, manifest)
    if (segments := manifest.schema.values(columns, "segment_ids")) is not None:
        begins = tokens & (np.diff(segments, axis=1, prepend=0) != 0)
        ends = tokens & (np.diff(segments, axis=1, append=0) != 0)
    elif manifest.schema.with_role("attention_mask") is None:
        return _between_ends(ids, tokens, manifest)
    else:
        begins = tokens & ~np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
        ends = tokens & ~np.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
    # Both in the order of rows and positions, so the n-th beginning belongs to the n-th end.
    (_, first_at), (_, last_at) = np.nonzero(begins), np.nonzero(ends)
    return Documents(lengths=last_at - first_at + 1, first=ids[begins], last=ids[ends])


def _between_ends(ids: np.ndarray, tokens: np.ndarray, manifest: Manifest) -> Documents:
    """Return the beginnings and ends that show in rows of joined documents: around each EOS token."""
    empty = np.zeros(0, np.int64)
    eos = _end_id(manifest)
    if eos is None:
        return Documents(lengths=empty, first=empty, last=empty)
    ends = tokens & (ids == eos)
    begins = np.pad(ends, ((0, 0), (1, 0)))[:, :-1] & tokens
    return Documents(lengths=empty, first=ids[begins], last=ids[ends])


def _end_id(manifest: Manifest) -> int | None:
    """Return the id that ends each document with --layout concat, None if that is not known."""
    special = manifest.layout.get("special_tokens", "eos")
    facts = manifest.tokenizer
    if special == "tokenizer":
        return facts.sep_id if facts.eos_id is None else facts.eos_id
    return None if special == "none" else facts.eos_id if facts.eos_id is not None else facts.sep_id
