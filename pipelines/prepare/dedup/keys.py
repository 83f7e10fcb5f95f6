"""Keys of rows: equal for equal texts, 128 bits, so that a billion rows meet by chance with probability 1e-21.

    'Ｇood.\n So '  ──NFKD──►  'Good.\n So '  ──lower──►  'good.\n so '  ──white space──►  'good. so'

White space is what ASCII calls so, and what NFKD turns into that. Texts that NFKD leaves alone, which a regular
expression finds, skip it, and a kernel does the rest: 2.8 times as fast on English.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines.prepare.sources.rows.hash_filter import row_hashes
from tfrecord_io.codec.kernels import jit

__all__ = ["normalized", "row_keys"]

# Any character but some that NFKD leaves as they are, and that have no upper case or are ASCII.
_NOT_PLAIN = "[^\\x00-\\x7f–—‘’“”•ß\\x{4e00}-\\x{9fa5}]"
_BLANK = ord(" ")
# Of each byte the lower-case one; a blank for white space.
_LOWER = np.array([_BLANK if chr(byte).isspace() else byte for byte in range(128)] + [*range(128, 256)], np.uint8)
_LOWER[ord("A") : ord("Z") + 1] += 32


def row_keys(columns: Sequence[pa.Array], *, verbatim: bool) -> np.ndarray:
    """Return the keys of n rows, uint64 [n, 2]; several columns count together.

    Nested columns, such as conversations, are compared as they are.
    """
    digests = [_digests(column, verbatim=verbatim) for column in columns]
    if len(digests) > 1:
        digests = [[xxhash.xxh3_128_digest(b"".join(row)) for row in zip(*digests, strict=True)]]
    return np.frombuffer(b"".join(digests[0]), "<u8").reshape(-1, 2)


def normalized(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return normalized large strings as UTF-8, uint8 [total], and where each begins and ends, int64 [n + 1]."""
    others = pc.match_substring_regex(texts, _NOT_PLAIN)
    changed = pc.utf8_lower(pc.utf8_normalize(texts.filter(others), form="NFKD"))  # equal where NFKC is
    data, edges = _buffers(pc.replace_with_mask(texts, others, changed) if len(changed) else texts)
    out, out_edges = np.empty(len(data), np.uint8), np.zeros(len(edges), np.int64)
    _squeeze(data, edges, _LOWER, out, out_edges)
    return out[: out_edges[-1]], out_edges


@jit
def _squeeze(data, edges, lower, out, out_edges):  # type: ignore[no-untyped-def]
    """Write each text in lower case, with one blank for each run of white space inside."""
    to = 0
    for row in range(len(edges) - 1):
        for at in range(edges[row], edges[row + 1]):
            byte = lower[data[at]]
            if byte != 32 or (to > out_edges[row] and out[to - 1] != 32):
                out[to] = byte
                to += 1
        if to > out_edges[row] and out[to - 1] == 32:
            to -= 1
        out_edges[row + 1] = to


def _digests(column: pa.Array, *, verbatim: bool) -> list[bytes]:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        hashes = np.stack([row_hashes([column], seed=seed) for seed in (1, 2)], axis=1)
        return [bytes(row) for row in hashes.astype("<u8").view(np.uint8).reshape(-1, 16)]
    texts = column.cast(pa.large_string()).fill_null("")
    data, offsets = _buffers(texts) if verbatim else normalized(texts)
    view = memoryview(data.tobytes())
    return [xxhash.xxh3_128_digest(view[start:stop]) for start, stop in itertools.pairwise(offsets.tolist())]


def _buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a large_string array and their offsets, from 0 on."""
    _, offsets, data = texts.buffers()
    ends = (
        np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        if len(texts)
        else np.zeros(1, int)
    )
    every = np.frombuffer(data or b"", np.uint8)
    return every[ends[0] : ends[-1]], ends - ends[0]
