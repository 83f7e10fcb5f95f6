"""Rows out of groups of frames, by compiled loops. `plain` does the same without Numba."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import example_layout
from tfrecord_io.random_access import row_kernels
from tfrecord_io.random_access.groups import Groups
from tfrecord_io.schema import Schema

__all__ = ["RowReader"]


class RowReader:
    """Reads rows of one schema."""

    read_spans = staticmethod(row_kernels.read_spans)

    def __init__(self, schema: Schema) -> None:
        taken = {"int64": 0, "float32": 0}
        keys, entries, starts = b"", [], {}
        for feature in example_layout.in_order(schema):
            key = example_layout.key(feature)
            tag = example_layout.LIST_TAGS[feature.dtype]
            entries.append([len(keys), len(keys) + len(key), tag, feature.num_values])
            keys += key
            starts[feature.name] = taken[feature.dtype]
            taken[feature.dtype] += feature.num_values
        self._keys, self._entries_F4 = np.frombuffer(keys, np.uint8), np.array(entries, np.int64)
        self._num_ints, self._num_floats = taken["int64"], taken["float32"]
        # Of each feature, in the schema's order: where its values are among those of its dtype, in a row.
        self._places = [
            (feature.name, feature.dtype == "int64", at, at + feature.num_values, feature.shape)
            for feature in schema.features
            for at in [starts[feature.name]]
        ]

    def read(self, groups: Groups, *, check: bool) -> tuple[int, dict[str, np.ndarray]]:
        """The wanted records, int64 or float32 [N, *shape] for each feature.

        Returns: how many of the first are sound, and the columns, if all are.
        """
        data, starts_N, stops_N, skips_N = groups
        data = data.view()
        data.flags.writeable = False  # kernels are compiled for data that cannot be written to
        num_rows = len(starts_N)
        ints, floats = np.empty(num_rows * self._num_ints, np.int64), np.empty(num_rows * self._num_floats, np.float32)
        sound: int = row_kernels.read_rows(
            data, starts_N, stops_N, skips_N, check, self._keys, self._entries_F4, ints, floats.view(np.uint8)
        )
        if sound < num_rows:
            return sound, {}
        columns = {}
        for name, is_int, start, stop, shape in self._places:
            values = (ints if is_int else floats)[num_rows * start : num_rows * stop]
            columns[name] = values.reshape(num_rows, *shape)
        return sound, columns
