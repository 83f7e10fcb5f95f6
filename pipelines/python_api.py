"""The commands as Python functions, for notebooks and scripts.

    from prep_tfrecords import build

    build("imdb", output="out", tokenizer="bert-base-uncased", label_column="label", max_length=256)

Keyword arguments are the options of `prep-tfrecords build` with underscores (`--text-column` is `text_column`). A
repeatable option takes a list, a flag True or False (`shuffle=False` is --no-shuffle). `map` and `filter` run in the
order of the arguments. `build` and `plan` also take objects: a dataset, frame or table, a tokenizer, and functions.
Results are dataclasses, errors are classes of `tfrecord_io.errors`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.prepare.launch.built import Built, splits_table
from tfrecord_io.shown import html_table

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pipelines.build_options import BuildOptions
    from pipelines.prepare.audit.decode import DecodedRow
    from pipelines.prepare.audit.verify import CheckedFile
    from pipelines.prepare.export.export_settings import ExportFormat
    from pipelines.prepare.export.exporting import Exported
    from pipelines.prepare.launch.estimate import Estimate
    from pipelines.prepare.process.progress import Counts, Progress
    from tfrecord_io.manifest import Manifest

__all__ = ["Built", "Inspected", "Planned", "Verified", "build", "export", "inspect", "plan", "verify"]

Text = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """Result of `plan`: one estimate per split."""

    splits: tuple[Estimate, ...]

    def _repr_html_(self) -> str:
        head = ("split", "rows", "filtered", "rejected", "tokens", "shards", "bytes")
        rows = []
        for estimate in self.splits:
            read = (estimate.rows - estimate.rows_in_other_splits, estimate.rows_filtered, estimate.rows_rejected)
            rows.append((estimate.split, *read, estimate.num_tokens, estimate.shards, estimate.num_bytes))
        return html_table(head, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspected:
    """Result of `inspect`: the manifest of the dataset in `root`, and decoded rows."""

    root: str
    manifest: Manifest = dataclasses.field(repr=False)
    rows: tuple[DecodedRow, ...]

    def _repr_html_(self) -> str:
        texts = ((row.split, row.record, row.num_tokens, row.text) for row in self.rows)
        return splits_table(self.manifest) + html_table(("split", "record", "tokens", "text"), texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verified:
    """Result of `verify`: every file of the dataset in `root`, with any problem."""

    root: str
    files: tuple[CheckedFile, ...]

    @property
    def damaged(self) -> tuple[CheckedFile, ...]:
        """Files that are damaged or missing."""
        return tuple(file for file in self.files if file.problem)


def build(
    *datasets: Any,
    output: Text,
    tokenizer: Any,
    beam_args: Sequence[str] = (),
    progress: Callable[[Counts, int], None] | None = None,
    **options: Unpack[BuildOptions],
) -> Built:
    """Build a dataset, or complete an unfinished one, like `prep-tfrecords build`.

    datasets: a Hub id, files by path or glob, a folder, or one dataset object in memory.
    output: the folder for the dataset.
    tokenizer: a Hub id, a folder or a tokenizer object.
    beam_args: the arguments after `--` on the command line.
    progress: called every second from another thread, and at the end, with the counts of rows, tokens, bytes and shards
        so far, and the total number of rows.

    Raises: ConfigError for an unknown option; every PrepError of a build.
    """
    from pipelines import python_options
    from pipelines.prepare.launch import launcher
    from pipelines.prepare.process.progress import unwatched

    keywords = {"output": output, "tokenizer": tokenizer, **options}
    with python_options.config_of(datasets, keywords, beam_args=beam_args) as config:
        return launcher.build(config, watch=functools.partial(_watch, progress) if progress else unwatched)


def _watch(
    call: Callable[[Counts, int], None], doing: str, num_rows: int, progress: Progress
) -> contextlib.AbstractContextManager[None]:
    from pipelines.prepare.process.progress import polled

    return polled(lambda: call(progress.read(), num_rows), seconds=1.0)


def plan(*datasets: Any, tokenizer: Any, **options: Unpack[BuildOptions]) -> Planned:
    """Estimate the output of `build` from a sample, without writing it. Raises: the errors of `build`."""
    from pipelines import python_options
    from pipelines.prepare.launch import estimate

    with python_options.config_of(datasets, {"output": ".", "tokenizer": tokenizer, **options}) as config:
        return Planned(splits=tuple(estimate.estimate(config)))


def inspect(dataset: Text, *, split: str | Iterable[str] = (), rows: int = 2) -> Inspected:
    """Return the manifest of a finished dataset, and the first `rows` rows of each split, or of `split`.

    Raises: ManifestError if the folder has no finished dataset; ReaderError if a split does not exist.
    """
    from pipelines.prepare.audit import decode
    from pipelines.prepare.dataset import own_files

    root = os.fspath(dataset)
    manifest = own_files.require_manifest(root)
    splits = (split,) if isinstance(split, str) else tuple(split)
    decoded = (decode.decoded_rows(root, manifest, name, rows=rows) for name in splits or tuple(manifest.splits))
    return Inspected(root=root, manifest=manifest, rows=tuple(itertools.chain(*decoded)))


def verify(dataset: Text) -> Verified:
    """Check every file of a finished dataset. Damage is listed in the result.

    Raises: ManifestError if the folder has no finished dataset.
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
    join_prompts: bool = False,
    push: str | None = None,
    workers: int | None = None,
    beam_args: Sequence[str] = (),
) -> Exported:
    """Export a finished dataset to the format of another trainer, like `prep-tfrecords export`.

    rename: {column name: new name}. Other arguments are as on the command line.

    Raises: ManifestError if there is no finished dataset; CorruptRecordError for a damaged shard; other PrepErrors.
    """
    from pipelines.prepare.export import exporting
    from pipelines.prepare.export.export_settings import ExportSettings

    settings = ExportSettings(
        to=to,
        renamed=tuple((rename or {}).items()),
        dropped=tuple(drop),
        extra=tuple(add),
        documents=documents,
        join_prompts=join_prompts,
        push=push,
        output=os.fspath(output),
        splits=(split,) if isinstance(split, str) else tuple(split),
        workers=workers,
        beam_args=tuple(beam_args),
    )
    return exporting.export(os.fspath(dataset), settings)
