"""The commands as Python functions, for notebooks and scripts.

    from pipelines import build, export, inspect, plan, verify

    built = build("imdb", output="out", tokenizer="bert-base-uncased", label_column="label", max_length=256)
    inspect("out", rows=3)

`build` and `plan` also take what a notebook holds: a Dataset, DatasetDict or IterableDataset of `datasets`, a dict by
split, a pandas or polars DataFrame or a pyarrow.Table as the dataset, a tokenizer of `transformers`, and functions as
`map` and `filter`.

Keyword arguments are named as the options of `prep-tfrecords build`, with underscores (`--text-column` is
`text_column`), and have the same defaults. One that may be repeated takes a list; a flag takes True or False
(`shuffle=False` is --no-shuffle). `map` and `filter` run in the order in which they are given. Results are dataclasses.
Errors are those of `tfrecord_io.errors`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.prepare.audit.decode import DecodedRow
    from pipelines.prepare.audit.verify import CheckedFile
    from pipelines.prepare.export.export_settings import ExportFormat
    from pipelines.prepare.export.exporting import Exported
    from pipelines.prepare.launch.estimate import Estimate
    from tfrecord_io.manifest import Manifest

__all__ = ["Built", "Inspected", "Planned", "Verified", "build", "export", "inspect", "plan", "verify"]

Text = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A finished dataset in `root`; how many of its shards this call made and kept, and how long it took in seconds."""

    root: str
    manifest: Manifest = dataclasses.field(repr=False)
    shards_made: int
    shards_kept: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """What a build would make: an estimate for each split."""

    splits: tuple[Estimate, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspected:
    """The manifest of the dataset in `root`, and rows decoded back to text."""

    root: str
    manifest: Manifest = dataclasses.field(repr=False)
    rows: tuple[DecodedRow, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verified:
    """Every file of the dataset in `root`, with its problem if it has one."""

    root: str
    files: tuple[CheckedFile, ...]

    @property
    def damaged(self) -> tuple[CheckedFile, ...]:
        """The files that are damaged or missing."""
        return tuple(each for each in self.files if each.problem)


def build(*datasets: Any, output: Text, tokenizer: Any, beam_args: Sequence[str] = (), **options: Any) -> Built:
    """Make a dataset, or what is missing of it, as `prep-tfrecords build` does.

    datasets: a hub id, files by path or glob, a folder, or one object. Its rows are written to Parquet first, in a
    temporary folder; their digest is the source's identity, so that the same rows go on
    with the same build. tokenizer: a hub id, a folder or a tokenizer. beam_args: what stands behind `--` on the command
    line.

    Raises: ConfigError for an option that there is not; every PrepError of a build.
    """
    from pipelines.cli import objects
    from pipelines.prepare.launch import launcher

    given = {"output": output, "tokenizer": tokenizer, **options}
    with objects.config_of(datasets, given, beam_args=beam_args) as config:
        made = launcher.build(config)
    return Built(root=config.output.root, **vars(made))


def plan(*datasets: Any, tokenizer: Any, **options: Any) -> Planned:
    """Estimate from a sample what `build` with the same arguments would make. Writes nothing.

    Raises: as `build`.
    """
    from pipelines.cli import objects
    from pipelines.prepare.launch import estimate

    with objects.config_of(datasets, {"output": ".", "tokenizer": tokenizer, **options}) as config:
        return Planned(splits=tuple(estimate.estimate(config)))


def inspect(dataset: Text, *, split: str | Iterable[str] = (), rows: int = 2) -> Inspected:
    """Return the manifest of a finished dataset and the first `rows` rows of each split, or of those in `split`.

    Raises: ManifestError if there is no finished dataset; ReaderError if there is no such split.
    """
    from pipelines.prepare.audit import decode
    from pipelines.prepare.dataset import own_files

    root = os.fspath(dataset)
    manifest = own_files.require_manifest(root)
    splits = (split,) if isinstance(split, str) else tuple(split)
    decoded = (decode.decoded_rows(root, manifest, name, rows=rows) for name in splits or tuple(manifest.splits))
    return Inspected(root=root, manifest=manifest, rows=tuple(row for each in decoded for row in each))


def verify(dataset: Text) -> Verified:
    """Read all of a finished dataset and check it. Damage is in the result; nothing is raised for it.

    Raises: ManifestError if there is no finished dataset.
    """
    from pipelines.prepare.audit import verify as verifying
    from pipelines.prepare.dataset import own_files

    root = os.fspath(dataset)
    return Verified(root=root, files=tuple(verifying.verify_files(root, own_files.require_manifest(root))))


def export(
    dataset: Text,
    *,
    to: ExportFormat,
    output: Text,
    split: str | Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    add: Sequence[str] = (),
    documents: bool = False,
    workers: int | None = None,
    beam_args: Sequence[str] = (),
) -> Exported:
    """Write a finished dataset in a format of other trainers, as `prep-tfrecords export` does.

    rename: new names by the present ones. The other arguments are the options of the same names. The result has the
    export's `root`, its `shards` with their files, and as a build's `shards_made`, `shards_kept` and `seconds`.

    Raises:
        ManifestError: there is no finished dataset.
        CorruptRecordError: a shard is damaged.
        PrepError: as the command.
    """
    from pipelines.prepare.export import exporting
    from pipelines.prepare.export.export_settings import ExportSettings

    settings = ExportSettings(
        to=to,
        renamed=tuple((rename or {}).items()),
        dropped=tuple(drop),
        extra=tuple(add),
        documents=documents,
        output=os.fspath(output),
        splits=(split,) if isinstance(split, str) else tuple(split),
        workers=workers,
        beam_args=tuple(beam_args),
    )
    return exporting.export(os.fspath(dataset), settings)
