"""Export of `tf.train.Example`s to ArrayRecord files, or to TFRecord files with features renamed or dropped.

ArrayRecord files have `group_size:1`, as in TFDS (`core/file_adapters.py`, `ArrayRecordFileAdapter`) and as Grain
requires. They are uncompressed: zstd would save 10 to 33 % of the space, but halve the writing speed (measured).

In TFRecord files, tags with mask 0 have the value -1, which Model Garden's tagging task leaves out of the loss
(`official/nlp/tasks/tagging.py`).
"""

import dataclasses
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipelines.prepare.dataset import tfds
from pipelines.prepare.export.export_record import ExportedFile
from pipelines.prepare.export.writer import Columns, Writer
from tfrecord_io import examples, records
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Shard, Split
from tfrecord_io.schema import Schema

_NO_TAG = -1


class ExampleWriter(Writer):
    """Base class for writers of `tf.train.Example`s. `file_format`: TFDS's name for the file format."""

    file_format: str

    def check(self) -> None:
        self.schema  # noqa: B018

    @property
    def schema(self) -> Schema:
        """The schema after --rename and --drop. Raises: ConfigError or SchemaError if the options do not fit."""
        chosen = self._settings.chosen(self._manifest.schema.names)
        kept = [feature for feature in self._manifest.schema.features if feature.name in chosen]
        return Schema(tuple(dataclasses.replace(feature, name=chosen[feature.name]) for feature in kept))

    def _renamed(self, columns: Columns) -> dict[str, np.ndarray]:
        return {new: columns[old] for old, new in self._settings.chosen(self._manifest.schema.names).items()}

    def files_beside(self, exported: Mapping[str, Sequence[tuple[Shard, ExportedFile]]]) -> dict[str, bytes]:
        splits = {
            name: Split(shards=tuple(dataclasses.replace(shard, num_bytes=file.num_bytes) for shard, file in pairs))
            for name, pairs in exported.items()
        }
        described = dataclasses.replace(
            self._manifest, schema=self.schema, splits=splits, compression="none", generations=()
        )
        return tfds.files(described, file_format=self.file_format)


class TfrecordWriter(ExampleWriter):
    file_format = "tfrecord"

    def files(self, batches: Iterator[Columns]) -> dict[str, bytes]:
        stored, schema = self._manifest.schema, self.schema
        labels, mask = stored.with_role("token_labels"), stored.with_role("token_label_mask")
        pieces = []
        for columns in batches:
            if labels is not None and mask is not None:
                columns = {**columns, labels.name: np.where(columns[mask.name] == 1, columns[labels.name], _NO_TAG)}
            pieces.append(records.encode_framed(self._renamed(columns), schema).data.data)
        return {"{}.tfrecord": b"".join(pieces)}


class ArrayRecordWriter(ExampleWriter):
    file_format, packages = "array_record", ("array_record",)

    def check(self) -> None:
        super().check()
        if importlib.util.find_spec("array_record") is None:
            cause = "--to arrayrecord needs the package array_record"
            raise ConfigError(cause, remedy="run `pip install 'prep-tfrecords[arrayrecord]'`")

    def files(self, batches: Iterator[Columns]) -> dict[str, bytes]:
        from array_record.python import array_record_module

        with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
            path = os.path.join(folder, "records")  # the library writes to a path
            writer = array_record_module.ArrayRecordWriter(path, "group_size:1,uncompressed")
            for columns in batches:
                for message in examples.encode(self._renamed(columns), self.schema):
                    writer.write(message)
            writer.close()
            with open(path, "rb") as file:
                return {"{}.array_record": file.read()}
