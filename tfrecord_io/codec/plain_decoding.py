"""Reading Examples with NumPy alone: where Numba is missing, and to say what is wrong with a record.

The packed values of one feature are taken apart for all records at once, the heads of entries one after the other. What
a record must look like is as strict as in `decoding`.
"""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import byte_values, example_layout
from tfrecord_io.schema import Feature, Schema

__all__ = ["DamageError", "decode"]


class DamageError(Exception):
    """What is wrong with which of the records."""

    def __init__(self, what: str, *, number: int = 0) -> None:
        super().__init__(what)
        self.number = number


def decode(data: np.ndarray, begins_N: np.ndarray, ends_N: np.ndarray, schema: Schema) -> dict[str, np.ndarray]:
    """Read the records data[begins_N[n] : ends_N[n]]: int64, float32 or objects [N, *shape] for each feature.

    Raises: DamageError.
    """
    features = example_layout.in_order(schema)
    parts: dict[str, list[np.ndarray]] = {feature.name: [] for feature in features}
    for number, (begin, end) in enumerate(zip(begins_N.tolist(), ends_N.tolist(), strict=True)):
        record = data[begin:end]
        walk = _Walk(record.tobytes(), number=number)
        walk.take(b"\x0a", end=len(record), otherwise=f"no Example of {len(record)} bytes", exact=True)
        for feature in features:
            start, stop = walk.take_entry(feature)
            parts[feature.name].append(record[start:stop])
        if walk.position != len(record):
            raise walk.damage(f"expected the end, found {len(record) - walk.position} more bytes")
    return {feature.name: _values(parts[feature.name], feature) for feature in schema.features}


class _Walk:
    """A walk through the tags and sizes of one record."""

    def __init__(self, content: bytes, *, number: int) -> None:
        self._content, self._number = content, number
        self.position = 0

    def damage(self, what: str) -> DamageError:
        found = self._content[self.position : self.position + 16].hex(" ") or "the end"
        return DamageError(f"byte {self.position}: {what} ({found})", number=self._number)

    def take(self, tag: bytes, *, end: int, otherwise: str, exact: bool) -> int:
        """Pass a tag and a size that reaches to `end`, or not beyond it. Returns: where it reaches."""
        if not self._content.startswith(tag, self.position):
            raise self.damage(otherwise)
        position, value, shift = self.position + len(tag), 0, 0
        for byte in self._content[position : min(position + 5, end)]:  # a size below 2^35
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                stop = position + value
                if (byte == 0 and shift > 7) or stop > end or (exact and stop < end):
                    break
                self.position = position
                return stop
        raise self.damage(otherwise)

    def take_entry(self, feature: Feature) -> tuple[int, int]:
        """Pass the entry of a feature. Returns: where its packed values begin and end."""
        expected = f"expected {_described(feature)}, found "
        no_entry, sizes = expected + "another entry or none", expected + "sizes that do not fit into each other"
        key, tag = example_layout.key(feature), example_layout.LIST_TAGS[feature.dtype]
        entry = self.position
        stop = self.take(b"\x0a", end=len(self._content), otherwise=no_entry, exact=False)
        if not self._content.startswith(key, self.position):
            self.position = entry
            raise self.damage(no_entry)
        self.take(key, end=stop, otherwise=sizes, exact=True)
        if self.position < stop and self._content[self.position] != tag:
            raise self.damage(expected + "a list of another kind")
        self.take(bytes([tag]), end=stop, otherwise=sizes, exact=True)
        self.take(b"\x0a", end=stop, otherwise=sizes, exact=True)
        start, self.position = self.position, stop
        return start, stop


def _described(feature: Feature) -> str:
    return f"feature {feature.name!r}, {feature.dtype}{list(feature.shape)}"


def _values(parts: list[np.ndarray], feature: Feature) -> np.ndarray:
    """Return the values of one feature of all records, from their packed bytes."""
    packed = np.concatenate([np.zeros(0, np.uint8), *parts])
    sizes_N = np.array([len(part) for part in parts], np.int64)
    if feature.is_bytes:
        ends_N = np.cumsum(sizes_N)
        return byte_values.objects(packed, np.stack([ends_N - sizes_N, ends_N], axis=1), feature)
    if feature.dtype == "float32":
        _check_counts(sizes_N // 4, (sizes_N != 4 * feature.num_values), feature)
        values = packed.view("<f4").astype(np.float32, copy=False)
    else:
        values = _integers(packed, sizes_N, feature)
    return values.reshape(len(parts), *feature.shape)


def _check_counts(counts_N: np.ndarray, wrong_N: np.ndarray, feature: Feature) -> None:
    if wrong_N.any():
        number = int(np.flatnonzero(wrong_N)[0])
        raise DamageError(f"expected {_described(feature)}, found {counts_N[number]} values", number=number)


def _integers(packed: np.ndarray, sizes_N: np.ndarray, feature: Feature) -> np.ndarray:
    """Return the varints of all records, int64 [N * num_values]."""
    last = packed < 0x80
    if last.all() and (sizes_N == feature.num_values).all():  # one byte each: masks, labels
        return packed.astype(np.int64)
    bounds = np.cumsum(sizes_N)
    counts_N = np.diff(np.concatenate([[0], np.cumsum(last)])[bounds], prepend=0)
    _check_counts(counts_N, counts_N != feature.num_values, feature)
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    widths, top = ends - starts + 1, packed[ends]
    wrong = ((top == 0) & (widths > 1)) | (widths > 10) | ((widths == 10) & (top > 1))
    wrong_N = wrong.reshape(len(sizes_N), -1).any(axis=1) | ~last[bounds - 1]
    if wrong_N.any():
        what = f"expected {_described(feature)}, found a value that is not a minimal varint of 64 bits"
        raise DamageError(what, number=int(np.flatnonzero(wrong_N)[0]))
    # 7 bits of each byte, the lowest first.
    values = (packed[starts] & 0x7F).astype(np.uint64)
    longer = np.arange(len(ends))
    for byte in range(1, int(widths.max())):
        longer = longer[widths[longer] > byte]
        values[longer] |= (packed[starts[longer] + byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
    return values.view(np.int64)
