"""Rendered conversations as one run of UTF-8 bytes, each byte with a mark whether it is to be learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.chat.rendering import Rendering
from pipelines.prepare.tokenize.ragged import offsets_of

__all__ = ["Texts"]


@dataclasses.dataclass(frozen=True)
class Texts:
    """N texts: `data` uint8 [B], `learned` uint8 [B] (0 or 1), and text i is data[edges[i]:edges[i + 1]]."""

    data: np.ndarray
    learned: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, renderings: Sequence[Rendering]) -> Texts:
        """From texts with spans of characters."""
        encoded = [rendering.text.encode() for rendering in renderings]
        edges = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        learned = np.zeros(int(edges[-1]), np.uint8)
        for rendering, first in zip(renderings, edges[:-1].tolist(), strict=True):
            at, place = first, 0
            for start, stop in rendering.spans:
                begin = at + len(rendering.text[place:start].encode())
                at = begin + len(rendering.text[start:stop].encode())
                learned[begin:at] = 1
                place = stop
        return cls(np.frombuffer(b"".join(encoded), np.uint8), learned, edges)

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """The texts of all parts, one after the other."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        empty = np.zeros(0, np.uint8)
        return cls(
            np.concatenate([empty, *(part.data for part in parts)]),
            np.concatenate([empty, *(part.learned for part in parts)]),
            offsets_of(np.concatenate([np.zeros(0, np.int64), *(part.sizes for part in parts)])),
        )

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each text, int64 [N]."""
        return np.diff(self.edges)

    @property
    def strings(self) -> pa.Array:
        """The texts as large strings over the same bytes."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.edges)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    def text(self, index: int) -> str:
        """One text."""
        return self.data[self.edges[index] : self.edges[index + 1]].tobytes().decode()

    def learned_letters(self, index: int) -> np.ndarray:
        """Which characters of a text are to be learned, bool."""
        place = slice(self.edges[index], self.edges[index + 1])
        begins = (self.data[place] & 0xC0) != 0x80
        return np.asarray(self.learned[place][begins] == 1)
