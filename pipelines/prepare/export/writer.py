"""Base class of export formats: the check of a request, the files of a shard, and other files."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare.audit.invariants import Columns as Columns
from pipelines.prepare.export.export_record import ExportedFile
from pipelines.prepare.export.export_settings import ExportSettings
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.schema import Role

# Roles that the ids of each document imply.
OF_DOCUMENTS: tuple[Role, ...] = ("token_ids", "attention_mask", "num_tokens", "segment_ids", "positions")


class Writer(abc.ABC):
    """One export of a dataset in one format. `packages`: the libraries with versions that affect its bytes.

    counts: numbers for `note`, by name, that `files` finds in a shard.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest, settings: ExportSettings) -> None:
        self._manifest, self._settings = manifest, settings
        self.counts: dict[str, int] = {}

    @abc.abstractmethod
    def check(self) -> None:
        """Check that the dataset can be exported with these settings. Raises: ConfigError; SchemaError."""

    @abc.abstractmethod
    def files(self, batches: Iterator[Columns]) -> Mapping[str, Any]:
        """Encode a shard's records, decoded batch by batch; return the content of each of its files.

        The key is the file's name, with {} for the shard's name without suffix.
        """

    def files_beside(self, exported: Mapping[str, Sequence[tuple[Shard, ExportedFile]]]) -> dict[str, bytes]:
        """Return further files by name. `exported`: by split, each shard with the first of its files."""
        del exported
        return {}

    def note(self, counts: Mapping[str, int]) -> str:
        """Return a warning from the counts of all shards, or ''."""
        del counts
        return ""

    def require_held(self, roles: Sequence[Role]) -> None:
        """Check that exactly the features of other roles are dropped; constant ones may stay. Raises: ConfigError."""
        settings, schema = self._settings, self._manifest.schema
        settings.chosen(schema.names)
        if schema.with_role("token_ids") is None:
            raise ConfigError(
                f"--to {settings.to}: a document of its files is one text, and a record here has two answers",
                remedy="export to parquet",
            )
        if needed := [each.name for each in schema.features if each.role in roles and each.name in settings.dropped]:
            raise ConfigError(
                f"--drop {needed[0]} with --to {settings.to}: its files are made from it", remedy="leave it out"
            )
        lost = [
            each.name
            for each in schema.features
            if each.role not in roles and each.constant is None and each.name not in settings.dropped
        ]
        if lost:
            held = "token ids and which of them are learned" if "loss_mask" in roles else "token ids alone"
            raise ConfigError(
                f"--to {settings.to}: its files hold {held}, and {', '.join(lost)} would be lost",
                remedy=f"leave them out with {' '.join(f'--drop {name}' for name in lost)}, or export to parquet",
            )
