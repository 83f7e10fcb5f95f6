"""Counting chunks of text: what stands between single spaces, with the space before it.

    text      The cat sat. The cat  ran.
    chunks    'The' ' cat' ' sat.' ' The' ' cat  ran.'          no cut at two spaces
    counts    1     2 ...

A normalizer and a pre-tokenizer are asked for the words of each distinct chunk once, instead of for every text. That
gives the same words, since nothing that the styles use looks
across such a space: their normalizers change characters one by one or together with marks that follow (a space takes
none from the left), no pattern of their pre-tokenizers goes on from a character that is no space to a space, and what
is done to the beginning of a text is done where it begins with no space, which only its first chunk does. Next to a
space that cuts stand only characters that no normalizer turns into spaces.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines.base import utf8_of
from pipelines.prepare.tokenizer_training import chunk_kernels as kernels
from tfrecord_io.codec.kernels import frozen

__all__ = ["ChunkCounter"]

_LEAST_SLOTS = 1 << 16
# Texts are counted in batches of about this size, so that there is room for what they may hold.
_BATCH_BYTES = 1 << 20
_PLANE = 0x10000
_SPACE = 0x20


class ChunkCounter:
    """Counts the chunks of texts."""

    def __init__(self) -> None:
        self._clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of the distinct chunks so far."""
        return int(self._counted.edges[len(self)])

    def __len__(self) -> int:
        return int(self._counted.used[0])

    def add(self, texts: pa.Array) -> None:
        """Count the chunks of texts in valid UTF-8, without nulls."""
        data, edges = utf8_of(texts)
        data, first = frozen(data), 0
        while first < len(edges) - 1:
            stop = max(first + 1, int(np.searchsorted(edges, edges[first] + _BATCH_BYTES, "right")) - 1)
            cuts = int(np.count_nonzero(data[edges[first] : edges[stop]] == _SPACE))
            self._require_room(num_bytes=int(edges[stop] - edges[first]), chunks=cuts + stop - first)
            kernels.add(self._counted, data, frozen(edges[first : stop + 1]), _safe())
            first = stop

    def drain(self) -> tuple[pa.Array, np.ndarray]:
        """Return the chunks, large_string [E], and their counts, int64 [E], and start over."""
        counted, size = self._counted, len(self)
        offsets = pa.py_buffer(counted.edges[: size + 1].copy())
        data = pa.py_buffer(counted.data[: self.num_bytes].copy())
        chunks = pa.LargeStringArray.from_buffers(size, offsets, data)
        counts = counted.counts[:size].copy()
        self._clear()
        return chunks, counts

    def _clear(self) -> None:
        strings = _LEAST_SLOTS // 2
        self._counted = kernels.Counted(
            slots=np.full(_LEAST_SLOTS, -1, np.int32),
            edges=np.zeros(strings + 1, np.int64),
            hashes=np.zeros(strings, np.uint64),
            counts=np.zeros(strings, np.int64),
            data=np.zeros(_LEAST_SLOTS, np.uint8),
            used=np.zeros(1, np.int64),
        )

    def _require_room(self, *, num_bytes: int, chunks: int) -> None:
        counted, size = self._counted, len(self)
        data = _grown(counted.data, self.num_bytes + num_bytes)
        slots, edges, hashes, counts = counted.slots, counted.edges, counted.hashes, counted.counts
        if (strings := size + chunks) > len(counts):
            edges, hashes, counts = (_grown(array, strings + 1) for array in (edges, hashes, counts))
        self._counted = counted._replace(slots=slots, edges=edges, hashes=hashes, counts=counts, data=data)
        if 2 * strings > len(slots):
            room = 1 << (4 * strings - 1).bit_length() - 1
            self._counted = self._counted._replace(slots=np.full(room, -1, np.int32))
            kernels.rehash(self._counted)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array with room for `size` values, twice as large as needed; new room is never touched until used."""
    if size <= len(array):
        return array
    larger = np.empty(2 * size, array.dtype)
    larger[: len(array)] = array
    return larger


@functools.cache
def _safe() -> np.ndarray:
    """Return which characters of 16 bits may stand next to a space that cuts, bool [65536]: letters, numbers,
    punctuation and symbols that hold no white space in any form of Unicode.
    """
    safe = np.zeros(_PLANE, bool)
    for point in range(_PLANE):
        character = chr(point)
        if unicodedata.category(character)[0] in "LNPS":
            forms = "".join(unicodedata.normalize(form, character) for form in ("NFKC", "NFKD"))
            safe[point] = point < 0x80 or not any(each.isspace() for each in forms)
    return frozen(safe)
