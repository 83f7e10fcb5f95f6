"""Rows out of groups of frames, by compiled loops. `plain` does the same without Numba."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import byte_values, example_layout
from tfrecord_io.random_access import row_kernels
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Schema

__all__ = ["RowReader"]


class RowReader:
    """Reads rows of one schema."""

    read_spans = staticmethod(row_kernels.read_spans)

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
        self._keys, self._entries_F4 = np.frombuffer(keys, np.uint8), np.array(entries, np.int64)
        self._num_ints, self._num_floats, self._num_bytes = taken.values()
        # Of each feature, in the schema's order: where its values are among those of its dtype, in a row.
        self._places = [
            (feature, at, at + feature.num_values) for feature in schema.features for at in [starts[feature.name]]
        ]

    def read(self, groups: Groups, *, check: bool) -> tuple[int, dict[str, np.ndarray]]:
        """The wanted records, int64, float32 or objects [N, *shape] for each feature.

        Returns: how many of the first are sound, and the columns, if all are.
        """
        data, starts_N, stops_N, skips_N = groups
        data = data.view()
        data.flags.writeable = False  # kernels are compiled for data that cannot be written to
        num_rows = len(starts_N)
        ints, floats = np.empty(num_rows * self._num_ints, np.int64), np.empty(num_rows * self._num_floats, np.float32)
        spans_FN2 = np.empty((self._num_bytes, num_rows, 2), np.int64)
        sound: int = row_kernels.read_rows(
            data,
            starts_N,
            stops_N,
            skips_N,
            check,
            self._keys,
            self._entries_F4,
            ints,
            floats.view(np.uint8),
            spans_FN2,
        )
        if sound < num_rows:
            return sound, {}
        columns = {}
        for feature, start, stop in self._places:
            if feature.is_bytes:
                columns[feature.name] = byte_values.objects(data, spans_FN2[start], feature)
                continue
            values = (ints if feature.dtype == "int64" else floats)[num_rows * start : num_rows * stop]
            columns[feature.name] = values.reshape(num_rows, *feature.shape)
        return sound, columns
