"""Reading Examples by compiled loops, for whole shards and for single rows."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import decoding_kernels, example_layout
from tfrecord_io.codec.kernels import frozen
from tfrecord_io.schema import Feature, Schema

__all__ = ["Decoder", "damage"]


class Decoder:
    """Decoder of the records of one schema."""

    def __init__(self, schema: Schema) -> None:
        taken = {"int64": 0, "float32": 0, "object": 0}
        keys, entries, starts = b"", [], {}
        for feature in example_layout.in_order(schema):
            key = example_layout.key(feature)
            tag = example_layout.LIST_TAGS[feature.dtype]
            entries.append([len(keys), len(keys) + len(key), tag, feature.num_values])
            keys += key
            starts[feature.name] = taken[feature.array_dtype]
            taken[feature.array_dtype] += feature.num_values
        self._keys, self._entries_F4 = np.frombuffer(keys, np.uint8), np.array(entries, np.int64).reshape(-1, 4)
        self._num_ints, self._num_floats, self._num_bytes = taken.values()
        # Of each feature, in the schema's order: where its values begin among those of its dtype, in a row.
        self._places = [(feature, starts[feature.name]) for feature in schema.features]

    def read(self, data: np.ndarray, begins_N: np.ndarray, ends_N: np.ndarray) -> tuple[int, dict[str, np.ndarray]]:
        """Read the records data[begins_N[n] : ends_N[n]]: int64, float32 or objects [N, *shape] for each feature.

        All three arrays are read-only (see `kernels.frozen`), so that the kernel is compiled once.

        Returns: how many of the first are sound, and the columns, if all are.
        """
        num_rows = len(begins_N)
        ints, floats = np.empty(num_rows * self._num_ints, np.int64), np.empty(num_rows * self._num_floats, np.float32)
        spans_FN2 = np.empty((self._num_bytes, num_rows, 2), np.int64)
        sound: int = decoding_kernels.read_examples(
            data,
            begins_N,
            ends_N,
            self._keys,
            self._entries_F4,
            ints,
            floats.view(np.uint8),
            spans_FN2,
        )
        if sound < num_rows:
            return sound, {}
        columns = {}
        for feature, start in self._places:
            if feature.is_bytes:
                columns[feature.name] = _objects(data, spans_FN2[start], feature)
                continue
            values = ints if feature.dtype == "int64" else floats
            here = slice(num_rows * start, num_rows * (start + feature.num_values))
            columns[feature.name] = values[here].reshape(num_rows, *feature.shape)
        return sound, columns


def _objects(data: np.ndarray, spans_N2: np.ndarray, feature: Feature) -> np.ndarray:
    """Return the values at [start, end) of the data, str or bytes [N]. Bytes that are no UTF-8 become surrogates."""
    view, values = data.data, np.empty(len(spans_N2), object)
    is_text = feature.dtype == "string"
    for at, (start, end) in enumerate(spans_N2.tolist()):
        values[at] = str(view[start:end], "utf-8", "surrogateescape") if is_text else bytes(view[start:end])
    return values


def damage(record: bytes, schema: Schema) -> str:
    """Return what is wrong with a serialized Example that a `Decoder` refuses, and where; "" if nothing is."""
    data = frozen(np.frombuffer(record, np.uint8))
    position, end = decoding_kernels.take_size(data, 0, 0x0A, len(data))
    if position < 0 or end != len(data):
        return _at(0, f"no Example of {len(data)} bytes", record)
    for feature in example_layout.in_order(schema):
        expected = f"expected feature {feature.name!r}, {feature.dtype}{list(feature.shape)}, found "
        tag, entry = example_layout.LIST_TAGS[feature.dtype], position
        key = frozen(np.frombuffer(example_layout.key(feature), np.uint8))
        start, position = decoding_kernels.take_header(data, entry, end, key, tag)
        if start < 0:
            return _at(entry, f"{expected}another entry, another kind of list or none", record)
        if what := _in_values(data[start:position], feature):
            return _at(start, expected + what, record)
    return "" if position == end else _at(position, f"expected the end, found {end - position} more bytes", record)


def _in_values(packed: np.ndarray, feature: Feature) -> str:
    if feature.is_bytes:
        return ""
    is_int = feature.dtype == "int64"
    count = int(np.count_nonzero(packed < 0x80)) if is_int else len(packed) // 4
    if count != feature.num_values or not (is_int or len(packed) % 4 == 0):
        return f"{count} values"
    if not is_int or decoding_kernels.take_ints(packed, 0, len(packed), np.empty(count, np.int64), 0, count):
        return ""
    return "a value that is not a minimal varint of 64 bits"


def _at(position: int, what: str, record: bytes) -> str:
    return f"byte {position}: {what} ({record[position : position + 16].hex(' ') or 'the end'})"
