"""Records out of groups of frames with NumPy alone: the functions of `compiled` for places without Numba.

Values are decoded for all records at once, frames and the heads of entries one after the other. What a record must look
like is as strict as in `examples`, and what breaks it is a CorruptRecordError.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tfrecord_io import example_layout
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.random_access import checksums
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Feature, Schema

__all__ = ["decode", "find"]

_REMEDY = "run `prep-tfrecords verify DATASET --repair`, which makes the shard again, or copy it from where it was made"
_HEAD_BYTES, _FRAME_BYTES = 12, 16
_LISTS = {"int64": 0x1A, "float32": 0x12}


def find(groups: Groups, *, check: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """Where each wanted record's data begin, and their sizes: int64 [N] twice, up to the first that is damaged.

    Returns: how many are sound, begins, sizes.
    """
    data = np.ascontiguousarray(groups.data).data
    begins, sizes, heads, owners = [], [], [], []
    places = zip(groups.starts_N.tolist(), groups.stops_N.tolist(), groups.skips_N.tolist(), strict=True)
    for number, (position, stop, skip) in enumerate(places):
        for left in range(skip, -1, -1):
            size = int.from_bytes(data[position : position + 8], "little")
            if size > stop - position - _FRAME_BYTES:  # also of what is no whole frame
                break
            heads.append(position)
            owners.append(number)
            if left:
                position += size + _FRAME_BYTES
        else:
            begins.append(position + _HEAD_BYTES)
            sizes.append(size)
            continue
        break
    begins_N, sizes_N = np.array(begins, np.int64), np.array(sizes, np.int64)
    if not check:
        return len(begins), begins_N, sizes_N
    heads_H = np.array(heads, np.int64)
    bad_heads = ~checksums.sound(groups.data, heads_H, np.full(len(heads), 8, np.int64))
    bad_data = np.flatnonzero(~checksums.sound(groups.data, begins_N, sizes_N))
    damaged = [*np.array(owners, np.int64)[bad_heads].tolist(), *bad_data.tolist()]
    return min([len(begins), *damaged]), begins_N, sizes_N


def decode(
    data: np.ndarray, begins_N: np.ndarray, sizes_N: np.ndarray, schema: Schema, *, place: str, first_record: int = 0
) -> dict[str, np.ndarray]:
    """The Examples at these places of `data`: see `examples.decode`."""
    entries = [(feature, _tags(feature)) for feature in example_layout.in_order(schema)]
    data = _joined(data, zip(begins_N.tolist(), (begins_N + sizes_N).tolist(), strict=True))
    begins_N = np.cumsum(sizes_N) - sizes_N
    content = data.tobytes()
    places: dict[str, list[tuple[int, int]]] = {feature.name: [] for feature, _ in entries}
    for number, (begin, size) in enumerate(zip(begins_N.tolist(), sizes_N.tolist(), strict=True)):
        position, end, what = begin, begin + size, "an Example"
        try:
            position = _sized(content, position, b"\x0a", end=end)
            for feature, tags in entries:
                what = f"feature {feature.name!r}, {feature.dtype}{list(feature.shape)}"
                position, stop = _payload(content, position, tags, end=end)
                places[feature.name].append((position, stop))
                position = stop
            what = "the end"
            _expect(position == end)
        except _OtherBytesError as error:
            raise _damage(f"{place}, record {first_record + number}, byte {position - begin}", what) from error
    return {
        feature.name: _values(data, places[feature.name], feature, place=place, first_record=first_record)
        for feature in schema.features
    }


class _OtherBytesError(Exception):
    """What lies there is not what was expected."""


def _expect(holds: bool) -> None:
    if not holds:
        raise _OtherBytesError


def _damage(where: str, what: str) -> CorruptRecordError:
    return CorruptRecordError(f"{where}: expected {what}, found something else", remedy=_REMEDY)


def _tags(feature: Feature) -> tuple[bytes, ...]:
    """What stands in front of the sizes of an entry, its value, the list in it, and the packed numbers in that."""
    return (b"\x0a", example_layout.key(feature), bytes([_LISTS[feature.dtype]]), b"\x0a")


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


def _values(
    data: np.ndarray, places: list[tuple[int, int]], feature: Feature, *, place: str, first_record: int
) -> np.ndarray:
    """The numbers of one feature of all records."""
    packed = _joined(data, places)
    sizes_N = np.array([stop - start for start, stop in places], np.int64)
    shape = (len(places), *feature.shape)
    if feature.dtype == "float32":
        wrong_N = sizes_N != 4 * feature.num_values
        values = np.empty(0, np.float32) if wrong_N.any() else packed.copy().view("<f4").astype(np.float32, copy=False)
    else:
        values, wrong_N = _integers(packed, sizes_N, count=feature.num_values)
    if wrong_N.any():
        record = int(np.flatnonzero(wrong_N)[0])
        what = f"feature {feature.name!r}, {feature.dtype}{list(feature.shape)}"
        raise _damage(f"{place}, record {first_record + record}", what)
    return values.reshape(shape)


def _joined(data: np.ndarray, places: Iterable[tuple[int, int]]) -> np.ndarray:
    return np.concatenate([data[:0], *(data[start:stop] for start, stop in places)])


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
