"""Read the rows of a split as a sequence."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from tfrecord_io import manifest as manifests
from tfrecord_io.errors import CorruptRecordError, ReaderError
from tfrecord_io.manifest import Manifest
from tfrecord_io.random_access import storage as storages
from tfrecord_io.random_access.shards import Messages, ShardFiles
from tfrecord_io.random_access.storage import Storage
from tfrecord_io.schema import Schema
from tfrecord_io.shown import some

_ITERATED_ROWS = 256

# Values by feature: [*shape] for one row, [N, *shape] for several.
Row = dict[str, np.ndarray]


def open(root: str | os.PathLike[str], *, check: bool = True) -> Data:
    """Open the dataset in folder `root`, a local path or any address that fsspec supports.

    An earlier generation's manifest, such as `out/manifest-0.json`, opens the dataset as it was before the append.

    Args:
        check: whether to verify the checksums of rows. Compressed shards are always verified.

    Raises:
        ReaderError: the manifest or a shard is missing, or a shard has a wrong size.
        ManifestError: the manifest is invalid.
    """
    folder, name = manifests.folder_and_name(os.fspath(root))
    storage = storages.at(folder)
    manifest = manifests.open_manifest(storage.shown, name, read=storage.read, sizes=storage.sizes)
    return Data(storage=storage, manifest=manifest, check=check)


class Rows(ShardFiles):
    """Rows of a split as a sequence, in the order of its shards; made by `random_access.open`.

    Numbers are arrays of int64 or float32. Text and bytes are `str` and `bytes`; for several rows, object arrays.

    Can be pickled; threads and processes, even forked ones, may share it.
    """

    def __repr__(self) -> str:
        # Grain identifies the dataset in checkpoints by this text.
        fingerprint = self.manifest.fingerprint[:12]
        return f"Rows({self.storage.shown!r}, {self.split!r}, {some(len(self), 'row')}, {fingerprint})"

    def __getitem__(self, index: SupportsIndex | slice) -> Row:
        """Return one row, or the rows of a slice as `batch` does.

        Raises: IndexError if a row does not exist, CorruptRecordError or ReaderError if a row cannot be read.
        """
        if isinstance(index, slice):
            return self.batch(range(*index.indices(len(self))))
        number, count = operator.index(index), len(self)
        row = number + count if number < 0 else number
        if not 0 <= row < count:
            raise IndexError(f"row {number} does not exist in {self!r}")
        shard, record = self.locate(row)
        return unstacked(self._decode(self._read_one(shard, record), (shard,), (record,)), 1)[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Row]:
        """Return a list of rows, for PyTorch. Raises: as `rows[index]`."""
        return unstacked(self.batch(indices), len(indices))

    _getitems = __getitems__

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), _ITERATED_ROWS):
            yield from self.__getitems__(range(start, min(start + _ITERATED_ROWS, len(self))))

    def batch(self, indices: Sequence[SupportsIndex] | np.ndarray) -> Row:
        """Return the rows with N numbers, which may repeat, as arrays [N, *shape] by feature name.

        Raises: as `rows[index]`; ReaderError if the indices are not integers.
        """
        plain = isinstance(indices, (np.ndarray, range))
        indices_N = np.asarray(indices if plain else [operator.index(index) for index in indices])
        if indices_N.ndim != 1 or (len(indices_N) and indices_N.dtype.kind not in "iu"):
            raise ReaderError(
                f"indices have dtype {indices_N.dtype} and shape {list(indices_N.shape)}, expected integers [N]"
            )
        rows_N = indices_N.astype(np.int64)
        rows_N[rows_N < 0] += len(self)
        outside_N = (rows_N < 0) | (rows_N >= len(self))
        if outside_N.any():
            raise IndexError(f"row {indices_N[outside_N][0]} does not exist in {self!r}")
        if not len(rows_N):
            return unfilled(self.manifest.schema, 0)
        shards_N, records_N = self._locate_all(rows_N)
        return self._decode(self._read(shards_N, records_N), shards_N, records_N)

    def _decode(self, messages: Messages, shards: Any, records: Any) -> Row:
        sound, columns = self._decoder.read(*messages)
        if sound < len(shards):
            from tfrecord_io.codec.decoding import damage

            data, begins_N, ends_N = messages
            record = data[begins_N[sound] : ends_N[sound]].tobytes()
            problem = damage(record, self.manifest.schema) or "damaged during reading"
            place = f"{self._path(shards[sound])}, record {records[sound]}"
            raise CorruptRecordError(f"{place}: {problem}", remedy=self._remedy)
        result: Row = columns
        return result

    @functools.cached_property
    def _decoder(self) -> Any:
        # Importing Numba takes half a second.
        from tfrecord_io.codec import decoding

        return decoding.Decoder(self.manifest.schema)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Data(Mapping[str, Rows]):
    """An opened dataset: a mapping from split names to `Rows`."""

    storage: Storage
    manifest: Manifest
    check: bool

    def __repr__(self) -> str:
        return f"Data({self.storage.shown!r}: {', '.join(self)})"

    def __getitem__(self, split: str) -> Rows:
        """Return the rows of a split. Raises: ReaderError if the split is missing or has rows of several lengths."""
        if split not in self.manifest.splits:
            raise ReaderError(f"{self.storage.shown}: no split {split!r}, expected one of {list(self)}")
        if self.manifest.bucket_lengths:
            raise ReaderError(
                f"{self.storage.shown}: rows have several lengths, {list(self.manifest.bucket_lengths)}, expected one",
                remedy=f"read one length at a time: data.bucket({self.manifest.bucket_lengths[0]})[{split!r}]",
            )
        return Rows(self.storage, self.manifest, split, self.check)

    def __contains__(self, split: object) -> bool:
        return split in self.manifest.splits

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.splits)

    def __len__(self) -> int:
        return len(self.manifest.splits)

    def bucket(self, length: int) -> Data:
        """Return the rows of one length as a dataset. Raises: ManifestError if no row has this length."""
        return dataclasses.replace(self, manifest=self.manifest.bucket(length))


def unfilled(schema: Schema, num_rows: int) -> Row:
    return {feature.name: np.empty((num_rows, *feature.shape), feature.array_dtype) for feature in schema.features}


def unstacked(columns: Row, num_rows: int) -> list[Row]:
    """Return the rows of a batch one by one. Scalars become arrays without dimensions."""
    return [
        {name: values[at] if values.dtype == object else values[at, ...] for name, values in columns.items()}
        for at in range(num_rows)
    ]
