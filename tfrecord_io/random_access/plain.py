"""Rows out of groups of frames with NumPy alone: what `compiled` does, for places without Numba.

Values and checksums are computed for all records at once, frames and the heads of entries one after the other. What a
record must look like is as strict as in `examples`.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from tfrecord_io.codec import byte_values, example_layout
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.random_access import checksums
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Feature, Schema

__all__ = ["RowReader", "explain"]

_HEAD_BYTES, _FRAME_BYTES = 12, 16


class _DamageError(Exception):
    """What is wrong with which of the wanted records; without a number where that is known further up."""

    def __init__(self, what: str, *, number: int = 0) -> None:
        super().__init__(what)
        self.number = number


class RowReader:
    """Reads rows of one schema."""

    read_spans = None

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def read(self, groups: Groups, *, check: bool) -> tuple[int, dict[str, np.ndarray]]:
        """The wanted records, int64, float32 or objects [N, *shape] for each feature.

        Returns: how many of the first are sound, and the columns, if all are.
        """
        try:
            return len(groups.starts_N), _decode(_find(groups, check=check), self._schema)
        except _DamageError as error:
            return error.number, {}


def explain(group: Groups, schema: Schema, *, check: bool, place: str, remedy: str) -> NoReturn:
    """Raises: CorruptRecordError, which says what is wrong with the one record that is wanted."""
    what = "it was damaged while it was read"
    try:
        _decode(_find(group, check=check), schema)
    except _DamageError as error:
        what = str(error)
    raise CorruptRecordError(f"{place}: {what}", remedy=remedy)


def _find(groups: Groups, *, check: bool) -> list[np.ndarray]:
    """The data of each wanted record, uint8."""
    data = np.ascontiguousarray(groups.data)
    view = data.data
    heads: list[int] = []
    begins, sizes = np.empty((2, len(groups.starts_N)), np.int64)
    places = zip(groups.starts_N.tolist(), groups.stops_N.tolist(), groups.skips_N.tolist(), strict=True)
    for number, (position, stop, skip) in enumerate(places):
        for _ in range(skip + 1):
            size = int.from_bytes(view[position : position + 8], "little")
            if size > stop - position - _FRAME_BYTES:  # nor is what ends before it a frame
                raise _DamageError(
                    f"{size} bytes where {max(0, stop - position - _FRAME_BYTES)} are left, {_of_size(skip)}",
                    number=number,
                )
            heads.append(position)
            position += size + _FRAME_BYTES
        begins[number], sizes[number] = position - size - 4, size
    if check:
        _check(data, np.array(heads, np.int64), begins, sizes, groups.skips_N)
    return [data[begin : begin + size] for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]


def _of_size(skip: int) -> str:
    behind = f" of it or of one of the {skip} records before it" if skip else ""
    return f"expected the size{behind} that was written"


def _check(
    data: np.ndarray, heads_H: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray, skips_N: np.ndarray
) -> None:
    """Raises: _DamageError if the crc of a size on the way, or of a record's data, is another than what is stored."""
    bad_heads_N = np.logical_or.reduceat(
        ~checksums.sound(data, heads_H, np.full(len(heads_H), 8, np.int64)), np.cumsum(skips_N + 1) - skips_N - 1
    )
    bad_data_N = ~checksums.sound(data, begins_N, sizes_N)
    if (bad_N := bad_heads_N | bad_data_N).any():
        number = int(np.flatnonzero(bad_N)[0])
        what = "size, " + _of_size(int(skips_N[number])) if bad_heads_N[number] else "data, expected those written"
        raise _DamageError(f"a crc that does not fit its {what}", number=number)


def _decode(records: list[np.ndarray], schema: Schema) -> dict[str, np.ndarray]:
    """The columns of serialized Examples."""
    entries = [(feature, _tags(feature)) for feature in example_layout.in_order(schema)]
    parts: dict[str, list[np.ndarray]] = {feature.name: [] for feature, _ in entries}
    for number, record in enumerate(records):
        content, what = record.tobytes(), "an Example"
        position, end = 0, len(content)
        try:
            position = _sized(content, position, b"\x0a", end=end)
            for feature, tags in entries:
                what = _described(feature)
                position, stop = _payload(content, position, tags, end=end)
                parts[feature.name].append(record[position:stop])
                position = stop
            what = "the end"
            _expect(position == end)
        except _OtherBytesError:
            raise _DamageError(f"something else than {what} at byte {position}, expected that", number=number) from None
    return {feature.name: _values(parts[feature.name], feature) for feature in schema.features}


class _OtherBytesError(Exception):
    """What lies there is not what was expected."""


def _expect(holds: bool) -> None:
    if not holds:
        raise _OtherBytesError


def _described(feature: Feature) -> str:
    return f"feature {feature.name!r}, {feature.dtype}{list(feature.shape)}"


def _tags(feature: Feature) -> tuple[bytes, ...]:
    """What stands in front of the sizes of an entry, its value, the list in it, and the packed numbers in that."""
    return (b"\x0a", example_layout.key(feature), bytes([example_layout.LIST_TAGS[feature.dtype]]), b"\x0a")


def _payload(content: bytes, position: int, tags: tuple[bytes, ...], *, end: int) -> tuple[int, int]:
    """Where the packed numbers of the entry at `position` begin and end."""
    stop = _stop(content, position, tags[0], end=end)
    for tag in tags:
        position = _sized(content, position, tag, end=stop)
    return position, stop


def _sized(content: bytes, position: int, tag: bytes, *, end: int) -> int:
    """The place behind a tag and a size that reaches to `end`."""
    start, size = _tag_and_size(content, position, tag)
    _expect(start + size == end)
    return start


def _stop(content: bytes, position: int, tag: bytes, *, end: int) -> int:
    """Where that ends which has this tag and a size."""
    start, size = _tag_and_size(content, position, tag)
    _expect(start + size <= end)
    return start + size


def _tag_and_size(content: bytes, position: int, tag: bytes) -> tuple[int, int]:
    _expect(content.startswith(tag, position))
    position += len(tag)
    value = shift = 0
    for byte in content[position : position + 5]:  # a size below 2^35
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            _expect(byte > 0 or shift == 7)
            return position, value
    raise _OtherBytesError


def _values(parts: list[np.ndarray], feature: Feature) -> np.ndarray:
    """The values of one feature of all records, from their packed bytes."""
    packed = np.concatenate(parts)
    sizes_N = np.array([len(part) for part in parts], np.int64)
    if feature.is_bytes:
        ends_N = np.cumsum(sizes_N)
        return byte_values.objects(packed, np.stack([ends_N - sizes_N, ends_N], axis=1), feature)
    if feature.dtype == "float32":
        wrong_N = sizes_N != 4 * feature.num_values
        values = packed if wrong_N.any() else packed.view("<f4").astype(np.float32, copy=False)
    else:
        values, wrong_N = _integers(packed, sizes_N, count=feature.num_values)
    if wrong_N.any():
        raise _DamageError(
            f"not as many values, or not of minimal length, expected {_described(feature)}",
            number=int(np.flatnonzero(wrong_N)[0]),
        )
    return values.reshape(len(parts), *feature.shape)


def _integers(packed: np.ndarray, sizes_N: np.ndarray, *, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Varints: int64 [N * count], and bool [N]: which records have not `count` of them, or one that is not minimal."""
    if (sizes_N == count).all() and not (packed >= 0x80).any():  # one byte each: masks, labels
        return packed.astype(np.int64), np.zeros(len(sizes_N), np.bool_)
    last = packed < 0x80
    bounds = np.cumsum(sizes_N)
    ends_before = np.concatenate([[0], np.cumsum(last)])
    wrong_N = np.diff(ends_before[bounds], prepend=0) != count
    wrong_N |= (sizes_N == 0) | ~last[np.maximum(bounds - 1, 0)]
    if wrong_N.any():
        return packed, wrong_N
    ends = np.flatnonzero(last)
    widths = np.diff(ends, prepend=-1)
    top = packed[ends]
    not_minimal = ((top == 0) & (widths > 1)) | (widths > 10) | ((widths == 10) & (top > 1))
    if not_minimal.any():
        return packed, not_minimal.reshape(len(sizes_N), count).any(axis=1)
    return _joined_bits(packed, ends, widths), wrong_N


def _joined_bits(packed: np.ndarray, ends: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The values of varints that end at `ends` and have `widths` bytes: 7 bits of each, the lowest first."""
    starts = ends - widths + 1
    values = (packed[starts] & 0x7F).astype(np.uint64)
    longer = np.arange(len(ends))
    for byte in range(1, int(widths.max())):
        longer = longer[widths[longer] > byte]
        bits = (packed[starts[longer] + byte] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * byte)
    return values.view(np.int64)
