"""Rendered conversations as one vector of UTF-8 bytes, with a loss mask for each byte."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines import utf8_of

__all__ = ["Texts"]


@dataclasses.dataclass(frozen=True)
class Texts:
    """N texts: `strings` (large strings) over the bytes `data`, uint8 [B]; `learned` uint8 [B] is 0 or 1 for each byte,
    and text i is data[edges[i]:edges[i + 1]], with edges from 0 to B.
    """

    strings: pa.Array
    data: np.ndarray
    learned: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, strings: pa.Array, learned: pa.Array) -> Texts:
        """From large strings that begin at their buffer's first byte, and the bytes [start, stop, start, stop, …] of
        each that are to be learned, in order and apart from each other.
        """
        data, edges = utf8_of(strings)
        data = data[: edges[-1]]
        counts = np.diff(learned.offsets.to_numpy())
        places = learned.flatten().to_numpy() + np.repeat(edges[:-1], counts)
        steps = np.zeros(len(data) + 1, np.int8)
        steps[places[0::2]] = 1
        steps[places[1::2]] -= 1  # a span may begin in one text where another ends in the text before
        return cls(strings, data, np.cumsum(steps[:-1], dtype=np.int8).view(np.uint8), edges)

    def __len__(self) -> int:
        return len(self.strings)

    def text(self, index: int) -> str:
        """Return one text."""
        return str(self.strings[index].as_py())

    def learned_letters(self, index: int) -> np.ndarray:
        """Return which characters of a text are learned, bool."""
        place = slice(self.edges[index], self.edges[index + 1])
        begins = (self.data[place] & 0xC0) != 0x80
        return np.asarray(self.learned[place][begins] == 1)
