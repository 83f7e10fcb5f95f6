"""Base class of export formats: the check of a request, the files of a shard, and other files."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare.audit.invariants import Columns as Columns
from pipelines.prepare.export.export_record import ExportedFile
from pipelines.prepare.export.export_settings import ExportSettings
from tfrecord_io.manifest import Manifest, Shard


class Writer(abc.ABC):
    """One export of a dataset in one format. `packages`: the libraries with versions that affect its bytes."""

    packages: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest, settings: ExportSettings) -> None:
        self._manifest, self._settings = manifest, settings

    @abc.abstractmethod
    def check(self) -> None:
        """Check that the dataset can be exported with these settings. Raises: ConfigError; SchemaError."""

    @abc.abstractmethod
    def files(self, batches: Iterator[Columns]) -> Mapping[str, Any]:
        """Encode a shard's records, decoded batch by batch; return the content of each of its files by suffix."""

    def files_beside(self, exported: Mapping[str, Sequence[tuple[Shard, ExportedFile]]]) -> dict[str, bytes]:
        """Return further files by name. `exported`: by split, each shard with the first of its files."""
        del exported
        return {}
