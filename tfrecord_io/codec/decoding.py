"""Reading Examples by compiled loops, for whole shards and for single rows."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import byte_values, decoding_kernels, example_layout
from tfrecord_io.schema import Schema

__all__ = ["Decoder"]


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
                columns[feature.name] = byte_values.objects(data, spans_FN2[start], feature)
                continue
            values = ints if feature.dtype == "int64" else floats
            here = slice(num_rows * start, num_rows * (start + feature.num_values))
            columns[feature.name] = values[here].reshape(num_rows, *feature.shape)
        return sound, columns
