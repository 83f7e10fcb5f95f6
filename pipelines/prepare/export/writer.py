"""Base class of export formats."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare.audit.invariants import Columns as Columns
from pipelines.prepare.export.export_record import ExportedFile
from pipelines.prepare.export.export_settings import ExportSettings
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest, Shard
from tfrecord_io.schema import Role

# Roles of features that follow from the token ids of each document.
OF_DOCUMENTS: tuple[Role, ...] = ("token_ids", "attention_mask", "num_tokens", "segment_ids", "positions")


class Writer(abc.ABC):
    """Base class of writers. `packages`: libraries that affect the bytes. `counts`: figures for `note`."""

    packages: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest, settings: ExportSettings) -> None:
        self._manifest, self._settings = manifest, settings
        self.counts: dict[str, int] = {}

    @abc.abstractmethod
    def check(self) -> None:
        """Check that the dataset can be exported with these settings. Raises: ConfigError or SchemaError."""

    @abc.abstractmethod
    def files(self, batches: Iterator[Columns]) -> Mapping[str, Any]:
        """Encode a shard's decoded records; return its files by name, where {} is the shard's name without suffix."""

    def files_beside(self, exported: Mapping[str, Sequence[tuple[Shard, ExportedFile]]]) -> dict[str, bytes]:
        """Return the content of additional files by name. `exported`: shards by split, each with its first file."""
        return {}

    def note(self, counts: Mapping[str, int]) -> str:
        """Return a warning, or '' for none. `counts`: sums of `Writer.counts` over all shards."""
        return ""

    def require_held(self, roles: Sequence[Role]) -> None:
        """Raise ConfigError unless features with `roles` are kept, and all others are dropped or constant."""
        settings, schema = self._settings, self._manifest.schema
        settings.chosen(schema.names)
        if schema.with_role("token_ids") is None:
            cause = f"--to {settings.to}: these files hold one text per document, but records here have two answers"
            raise ConfigError(cause, remedy="export with --to parquet")
        needed = [feature.name for feature in schema.features if feature.role in roles]
        if dropped := [name for name in needed if name in settings.dropped]:
            cause = f"--drop {dropped[0]} with --to {settings.to}: this format needs the column"
            raise ConfigError(cause, remedy="leave the --drop out")
        varying = [feature.name for feature in schema.features if feature.constant is None]
        if lost := [name for name in varying if name not in (*needed, *settings.dropped)]:
            content = "token ids and a mask of the learned ones" if "loss_mask" in roles else "token ids alone"
            raise ConfigError(
                f"--to {settings.to}: these files hold {content}, so {', '.join(lost)} would be lost",
                remedy=f"add {' '.join(f'--drop {name}' for name in lost)}, or export with --to parquet",
            )
