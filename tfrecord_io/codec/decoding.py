"""Decode the Examples that `encoding` writes, with compiled loops."""

import numpy as np

from tfrecord_io.codec import encoding
from tfrecord_io.codec.encoding import LIST_TAGS, in_order
from tfrecord_io.codec.kernels import copy, frozen, jit
from tfrecord_io.schema import Feature, Schema
from tfrecord_io.shown import some

_INT64_LIST, _BYTES_LIST = LIST_TAGS["int64"], LIST_TAGS["bytes"]


class Decoder:
    def __init__(self, schema: Schema) -> None:
        taken = {"int64": 0, "float32": 0, "object": 0}
        keys, entries, starts = b"", [], {}
        for feature in in_order(schema):
            key = encoding.key(feature)
            tag = LIST_TAGS[feature.dtype]
            entries.append([len(keys), len(keys) + len(key), tag, feature.num_values])
            keys += key
            starts[feature.name] = taken[feature.array_dtype]
            taken[feature.array_dtype] += feature.num_values
        self._keys, self._entries_F4 = np.frombuffer(keys, np.uint8), np.array(entries, np.int64).reshape(-1, 4)
        self._num_ints, self._num_floats, self._num_bytes = taken.values()
        # Position of each feature's first value among a row's values of this dtype.
        self._places = [(feature, starts[feature.name]) for feature in schema.features]

    def read(self, data: np.ndarray, begins_N: np.ndarray, ends_N: np.ndarray) -> tuple[int, dict[str, np.ndarray]]:
        """Decode N serialized Examples. Example n is data[begins_N[n] : ends_N[n]]; `data` is uint8.

        All arguments must be read-only (see `kernels.frozen`).

        Returns: the number of Examples before the first damaged one; and arrays [N, *shape] of int64, float32 or
            objects by feature name, an empty dict if an Example is damaged.
        """
        num_rows = len(begins_N)
        ints, floats = np.empty(num_rows * self._num_ints, np.int64), np.empty(num_rows * self._num_floats, np.float32)
        spans_FN2 = np.empty((self._num_bytes, num_rows, 2), np.int64)
        sound: int = _read_examples(
            data, begins_N, ends_N, self._keys, self._entries_F4, ints, floats.view(np.uint8), spans_FN2
        )
        if sound < num_rows:
            return sound, {}
        columns = {}
        for feature, start in self._places:
            if feature.is_bytes:
                columns[feature.name] = objects = np.empty(num_rows, object)
                for at, (first, end) in enumerate(spans_FN2[start].tolist()):
                    value = data.data[first:end]
                    # Invalid UTF-8 becomes surrogates.
                    is_text = feature.dtype == "string"
                    objects[at] = str(value, "utf-8", "surrogateescape") if is_text else bytes(value)
                continue
            values = ints if feature.dtype == "int64" else floats
            here = slice(num_rows * start, num_rows * (start + feature.num_values))
            columns[feature.name] = values[here].reshape(num_rows, *feature.shape)
        return sound, columns


def damage(record: bytes, schema: Schema) -> str:
    """Return a description of the first damage in a serialized Example, with its position, or "" if undamaged."""
    data = frozen(np.frombuffer(record, np.uint8))
    position, end = _take_size(data, 0, 0x0A, len(data))
    if position < 0 or end != len(data):
        return _at(0, f"not an Example of {some(len(data), 'byte')}", record)
    for feature in in_order(schema):
        expected = f"expected feature {feature.name!r}, {feature.dtype}{list(feature.shape)}, found "
        tag, entry = LIST_TAGS[feature.dtype], position
        key = frozen(np.frombuffer(encoding.key(feature), np.uint8))
        start, position = _take_header(data, entry, end, key, tag)
        if start < 0:
            return _at(entry, f"{expected}another entry, another kind of list or none", record)
        if problem := _in_values(data[start:position], feature):
            return _at(start, expected + problem, record)
    if position == end:
        return ""
    return _at(position, f"expected the end, found {some(end - position, 'more byte')}", record)


def _in_values(packed: np.ndarray, feature: Feature) -> str:
    if feature.is_bytes:
        return ""
    is_int = feature.dtype == "int64"
    count = int(np.count_nonzero(packed < 0x80)) if is_int else len(packed) // 4
    if count != feature.num_values or not (is_int or len(packed) % 4 == 0):
        return some(count, "value")
    if not is_int or _take_ints(packed, 0, len(packed), np.empty(count, np.int64), 0, count):
        return ""
    return "a value that is not a minimal varint of 64 bits"


def _at(position: int, problem: str, record: bytes) -> str:
    return f"byte {position}: {problem} ({record[position : position + 16].hex(' ') or 'the end'})"


@jit
def _take_varint(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    # The returned position is -1 if the varint is cut off, not minimal, or over 64 bits.
    value, shift = np.uint64(0), np.uint64(0)
    for p in range(position, min(position + 10, end)):
        byte = np.uint64(data[p])
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            padded = byte == np.uint64(0) and p > position
            too_large = shift == np.uint64(63) and byte > np.uint64(1)
            return value, np.int64(-1 if padded or too_large else p + 1)
        shift += np.uint64(7)
    return value, np.int64(-1)


@jit
def _take_size(data: np.ndarray, position: int, tag: int, end: int) -> tuple[int, int]:
    # Start and end of the content are both -1 if the tag or the size is wrong.
    if position < 0 or position >= end or data[position] != tag:
        return np.int64(-1), np.int64(-1)
    size, position = _take_varint(data, position + 1, end)
    if position < 0 or size > np.uint64(end - position):
        return np.int64(-1), np.int64(-1)
    return position, position + np.int64(size)


@jit
def _take_header(data: np.ndarray, position: int, end: int, key: np.ndarray, kind: int) -> tuple[int, int]:
    position, entry_end = _take_size(data, position, 0x0A, end)
    if position < 0 or entry_end - position < len(key):
        return np.int64(-1), np.int64(-1)
    for k in range(len(key)):
        if data[position + k] != key[k]:
            return np.int64(-1), np.int64(-1)
    size, position = _take_varint(data, position + len(key), entry_end)
    if position < 0 or size != np.uint64(entry_end - position):
        return np.int64(-1), np.int64(-1)
    position, list_end = _take_size(data, position, kind, entry_end)
    position, payload_end = _take_size(data, position, 0x0A, entry_end)
    if position < 0 or list_end != entry_end or payload_end != entry_end:
        return np.int64(-1), np.int64(-1)
    return position, payload_end


@jit
def _take_ints(data: np.ndarray, start: int, end: int, values: np.ndarray, place: int, length: int) -> bool:
    # False if the bytes are not exactly `length` minimal varints.
    if end - start == length:  # one byte each, such as masks: 0.7 instead of 4 ns per value
        first, at, above = np.uint64(start), np.uint64(place), np.uint8(0)
        for k in range(np.uint64(length)):
            values[at + k] = data[first + k]
            above |= data[first + k]
        return above < 0x80
    position = np.int64(start)
    for k in range(length):
        value, position = _take_varint(data, position, end)
        if position < 0:
            return False
        values[place + k] = np.int64(value)
    return position == end


@jit
def _read_examples(
    data: np.ndarray,
    begins_N: np.ndarray,
    ends_N: np.ndarray,
    keys: np.ndarray,
    entries_F4: np.ndarray,
    ints: np.ndarray,
    floats: np.ndarray,
    spans_FN2: np.ndarray,
) -> int:
    # entries_F4: for each feature, in record order: start and end of its key in `keys`, list tag, number of values.
    # Returns the number of the first damaged record, or N.
    num_rows = len(begins_N)
    for n in range(num_rows):
        position, end = _take_size(data, begins_N[n], 0x0A, ends_N[n])
        if position < 0 or end != ends_N[n]:
            return n
        int_base, float_base, byte_features = np.int64(0), np.int64(0), 0
        for f in range(len(entries_F4)):
            kind, count = entries_F4[f, 2], entries_F4[f, 3]
            start, position = _take_header(data, position, end, keys[entries_F4[f, 0] : entries_F4[f, 1]], kind)
            if start < 0:
                return n
            if kind == _INT64_LIST:
                if not _take_ints(data, start, position, ints, int_base + n * count, count):
                    return n
                int_base += num_rows * count
            elif kind == _BYTES_LIST:
                spans_FN2[byte_features, n, 0], spans_FN2[byte_features, n, 1] = start, position
                byte_features += 1
            else:
                if position - start != 4 * count:
                    return n
                copy(floats, float_base + n * 4 * count, data, start, 4 * count)
                float_base += num_rows * 4 * count
        if position != end:
            return n
    return num_rows
