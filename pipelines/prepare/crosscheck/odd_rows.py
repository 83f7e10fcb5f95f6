"""Rows with content that engines tend to get wrong, found while a job runs: some are compared with the reference.

    added      the content of an added token, as text        <mask>
    byte       the name of a byte token, as text             <0x0A>
    control    a control or format character                 U+000B, U+200B
    mark       a combining mark                              U+0301

Rows of each kind are compared in the order of the shard while their bytes stay within an allowance: 64 KiB plus a
1,600th of the text read so far. So a rare kind is compared wherever it occurs, and a common one now and then: in a
shard, all kinds together take at most 256 KiB plus a 400th of its text. The choice depends only on the rows of the
shard, not on how they are batched.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.crosscheck import odd_row_kernels as kernels
from pipelines.prepare.sources.columns.extraction import Rows, is_json
from pipelines.prepare.tokenize.engines import utf8_of
from tfrecord_io.codec.kernels import frozen

__all__ = ["ALLOWANCE", "EXTRA_ONE_IN", "KINDS", "OddRows"]

KINDS = ("added", "byte", "control", "mark")
ALLOWANCE = 1 << 16
EXTRA_ONE_IN = 1_600
# The cost of a row for the reference besides its bytes, in bytes.
_ROW_BYTES = 128
_NUM_ANCHORS = 4
# Bytes that most texts do not have; names without one are searched for by two adjacent bytes.
_RARE = frozenset(b"<>[]{}|@#$%^&*_+=~`\\/")
_HARMLESS = "\t\n\r"


class OddRows:
    """Chooses odd rows of one shard, batch by batch."""

    def __init__(self, added: Sequence[str]) -> None:
        """`added`: contents of the added tokens."""
        self._tables = _tables(tuple(added))
        self._spent = np.zeros(len(KINDS), np.int64)
        self._read = np.zeros(1, np.int64)

    def chosen(self, rows: Rows) -> np.ndarray:
        """Return the indices of those of the shard's next rows that are compared."""
        kinds, sizes = np.zeros(len(rows), np.uint8), np.full(len(rows), _ROW_BYTES, np.int64)
        for column in (*rows.texts, *rows.nested.values()):
            for texts, owners in _texts_in(column):
                self._find(texts, owners, kinds=kinds, sizes=sizes)
        which = np.zeros(len(rows), np.uint8)
        kernels.choose(kinds, sizes, self._spent, self._read, ALLOWANCE, EXTRA_ONE_IN, which)
        return np.flatnonzero(which)

    def _find(self, texts: pa.Array, owners: np.ndarray | None, *, kinds: np.ndarray, sizes: np.ndarray) -> None:
        data, edges = utf8_of(texts)
        found = np.zeros(len(texts), np.uint8)
        kernels.find(frozen(data), edges, self._tables, found)
        if owners is None:
            kinds |= found
            sizes += np.diff(edges)
            return
        odd = np.flatnonzero(found)
        np.bitwise_or.at(kinds, owners[odd], found[odd])
        np.add.at(sizes, owners, np.diff(edges))


def _texts_in(column: pa.Array, owners: np.ndarray | None = None) -> Iterator[tuple[pa.Array, np.ndarray | None]]:
    """Yield (texts, row of each text) of a column and everything nested in it; None if text i is of row i."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        yield column, owners
    elif pa.types.is_struct(column.type):
        for index in range(column.type.num_fields):
            yield from _texts_in(pc.struct_field(column, index), owners)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        yield from _texts_in(column.flatten(), np.repeat(np.arange(len(column)) if owners is None else owners, lengths))
    elif is_json(column.type):
        yield from _texts_in(column.storage, owners)


@functools.lru_cache(maxsize=8)
def _tables(added: tuple[str, ...]) -> kernels.Tables:
    names = _shortest(content.encode() for content in added)
    anchors = _anchors(names)
    sought = sorted([(name, 0) for name in names if any(anchor in name for anchor in anchors)] + [(b"<0x", 1)])
    anchors = list(dict.fromkeys([b"<", *anchors]))
    first_with = np.full(1 << 16, -1, np.int32)
    for index in reversed(range(len(sought))):
        first_with[int.from_bytes(sought[index][0][:2], "big")] = index
    return kernels.Tables(
        classes=frozen(_classes([name[0] for name, _ in sought])),
        kinds=_kinds_of_points(),
        first_with=frozen(first_with),
        data=frozen(np.frombuffer(b"".join(name for name, _ in sought), np.uint8)),
        edges=frozen(np.cumsum([0, *(len(name) for name, _ in sought)]).astype(np.int64)),
        kind_of=frozen(np.array([1 << kind for _, kind in sought], np.uint8)),
        longest=max(len(name) for name, _ in sought),
        anchors=frozen(_filters([*anchors, *[anchors[0]] * (_NUM_ANCHORS - len(anchors))])),
    )


def _shortest(names: Iterator[bytes]) -> list[bytes]:
    """Return the names that contain no shorter one, since that is found wherever a longer one is.

    Names of one byte are left out: a single letter, digit or space is in every text.
    """
    kept: list[bytes] = []
    for name in sorted({name for name in names if len(name) > 1}, key=lambda name: (len(name), name)):
        if not any(shorter in name for shorter in kept):
            kept.append(name)
    return kept


def _anchors(names: Sequence[bytes]) -> list[bytes]:
    """Return "<" and up to three more anchors, rare bytes or pairs of bytes, that most of the names contain.

    A name without an anchor is not searched for, such as most added tokens that are ordinary words.
    """
    anchors: list[bytes] = []
    left = [name for name in names if b"<" not in name]
    while left and len(anchors) < _NUM_ANCHORS - 1:
        parts = {bytes([byte]) for name in left for byte in name if byte in _RARE}
        parts |= {name[at : at + 2] for name in left for at in range(len(name) - 1)}
        best = max(sorted(parts), key=lambda part: (sum(part in name for name in left), -len(part)))
        anchors.append(best)
        left = [name for name in left if best not in name]
    return [b"<", *anchors]


def _filters(anchors: Sequence[bytes]) -> np.ndarray:
    """Return uint8 [N, 3]: a byte, bits to set in the next byte, and its value then; any byte fits a single one."""
    pairs = [(*anchor, 0) if len(anchor) == 2 else (anchor[0], 255, 255) for anchor in anchors]
    return np.array(pairs, np.uint8)


def _classes(first: Sequence[int]) -> np.ndarray:
    """Return what each byte may begin: see `odd_row_kernels`."""
    classes = np.zeros(256, np.uint8)
    odd = [point for point in range(128) if unicodedata.category(chr(point)) == "Cc" and chr(point) not in _HARMLESS]
    classes[odd] = kernels.CONTROL_BYTE
    classes[0xC2:0xF5] |= kernels.LEAD
    classes[list(first)] |= kernels.NAME
    return classes


@functools.cache
def _kinds_of_points() -> np.ndarray:
    """Return the kind of each code point as a bit, up to the last one that has a kind."""
    kinds = np.zeros(0xE0200, np.uint8)
    for point in (*range(0x80, 0x1F000), *range(0xE0000, len(kinds))):
        category = unicodedata.category(chr(point))
        if category in ("Cc", "Cf"):
            kinds[point] = 1 << KINDS.index("control")
        elif category[0] == "M":
            kinds[point] = 1 << KINDS.index("mark")
    return frozen(kinds)
