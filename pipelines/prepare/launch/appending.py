"""Append new rows of the same source to a finished dataset, with unchanged options.

The source must begin with exactly the files and rows that the manifest lists.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.prepare.dataset import fingerprint, own_files, plan_files, source_record
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.options.suggestions import listing
from pipelines.prepare.plan.planning import RowRanges
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.resolve import resolve
from pipelines.prepare.sources.resolve.data_files import is_same_file
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tfrecord_io.errors import FingerprintMismatchError, ManifestError, OutputError, SourceError
from tfrecord_io.manifest import REMAKE, Manifest
from tfrecord_io.shown import some

_REBUILD = "or build again without --append, with another --output or with --overwrite"

Entry = Mapping[str, Any]


class NothingNewError(SourceError):
    """All rows of the source are in the dataset already."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Append:
    """Append of new rows to the finished dataset in `root`. `former`: its manifest before the append."""

    root: str
    former: Manifest

    @classmethod
    def to(cls, root: str) -> Append:
        """Read the manifest of the finished dataset in `root`, to append to it.

        Raises: OutputError if there is no manifest; ManifestError if it is damaged or does not list its source.
        """
        former = own_files.read_manifest(root)
        if former is None:
            raise OutputError(
                f"{root}: no {own_files.OWN_FILES[0]}, expected a finished dataset to append to",
                remedy="finish the build without --append first, or give the --output of a finished dataset",
            )
        source = former.source
        if not former.splits.keys() <= source.get("splits", {}).keys() or not {"files", "revision"} & source.keys():
            raise ManifestError(f"{root}: the manifest does not list the source's rows and files", remedy=REMAKE)
        return cls(root=root, former=former)

    def with_known_lengths(self, config: PrepareConfig) -> PrepareConfig:
        """Return `config` with the existing dataset's row lengths in place of `--bucket-lengths auto:K`."""
        layout, lengths = config.layout, self.former.bucket_lengths
        if not bucket_lengths.automatic_count(layout.bucket_lengths) or not lengths:
            return config
        layout = dataclasses.replace(layout, bucket_lengths=lengths, max_length=lengths[-1])
        return dataclasses.replace(config, layout=layout)

    def require_same_request(self, config: PrepareConfig, listing: SourceListing, items: Mapping[str, Any]) -> None:
        """Check that options and source match the existing dataset, as far as possible before rows are located.

        `listing`: the source's files now. `items`: values for the fingerprint, by name, without hold-outs. Raises:
        FingerprintMismatchError if they differ; SourceError if an earlier Hub revision can no longer be listed.
        """
        # The source first: the options contain a default name that depends on it.
        if change := _source_change(source_record.identity_of(self.former), listing, config.source):
            raise self._other_source(change)
        self._require_same_options(items, ignored=("hold_out",))

    def known_rows(self, config: PrepareConfig) -> dict[str, np.ndarray]:
        """Return the rows per source file, int64 [F], by source split, as the finished dataset recorded them.

        Includes only source splits with all rows in the dataset. Empty with user functions: their test reads old rows.
        """
        if config.source.functions:
            return {}
        file_rows: dict[str, np.ndarray] = {}
        origins = {split: source_record.origin_of(self.former, split) for split in self.former.splits}
        for generation in reversed(own_files.generations_of(self.former)):  # the latest lists the most files
            for split in generation.rows:
                if origins[split] not in file_rows:
                    file_rows[origins[split]] = plan_files.read_file_rows(self.root, generation.fingerprint, split)
        # A source split is complete if every split made from it has all of its rows in source order.
        incomplete = {
            origin for split, origin in origins.items() if self._rows_before(split) != ((0, file_rows[origin].sum()),)
        }
        return {name: rows for name, rows in file_rows.items() if name not in incomplete}

    def new_rows(self, source: Source) -> Source:
        """Return `source` with only the rows that are not in the dataset, and only splits with such rows.

        Raises: NothingNewError if there are no new rows; FingerprintMismatchError if the rows requested for a split do
            not begin with its rows in the dataset, or come from another source split.
        """
        splits = {}
        for name, split in source.splits.items():
            before, origin = self._rows_before(name), source_record.origin_of(self.former, name)
            if before and origin != split.source_split:
                raise self._other_source(
                    f"split {name!r} was made from split {origin!r} of the source, and now from {split.source_split!r}"
                )
            ranges = _rest(before, split.ranges)
            if ranges is None:
                raise self._other_source(
                    f"split {name!r} has the rows {_shown(before)}, and the rows requested now do not begin with them: "
                    f"{_shown(split.ranges)}"
                )
            if ranges:
                splits[name] = dataclasses.replace(split, ranges=ranges)
        if not splits:
            raise NothingNewError(
                f"{self.root}: the source has no rows that are not in this dataset; nothing was changed",
                remedy="add files to the source first",
            )
        by_origin = {split.source_split: split for split in splits.values()}
        return dataclasses.replace(source, splits=splits, all_splits=by_origin)

    def items(self, items: Mapping[str, Any], splits: Mapping[str, SplitSource]) -> dict[str, Any]:
        """Return the append's fingerprint values: `items` and the new rows. Raises: FingerprintMismatchError."""
        self._require_same_options(items)
        rows = {name: [list(span) for span in split.ranges] for name, split in sorted(splits.items())}
        return {**items, "append": {"to": self.former.fingerprint, "rows": rows}}

    def continued(self, job: Job, observed: ColumnPlan) -> Job:
        """Return `job` as an append: its task and row numbers follow the dataset's.

        `observed`: the new rows' column plan. Raises: FingerprintMismatchError if classes or features differ.
        """
        known = self.former.label_names or ()
        plans = [plan for plan in (observed.label, observed.tags) if plan is not None]
        new = [name for plan in plans for name in plan.names or () if name not in known]
        if new or any(plan.kind == "class" and plan.names != self.former.label_names for plan in plans):
            got, expected = (listing(list(map(repr, names))) for names in (new, known))
            raise FingerprintMismatchError(
                f"{self.root}: the new rows have other classes ({got or 'in another order'}), expected the "
                f"dataset's classes ({expected}), since its class ids cannot change",
                remedy=f"leave such rows out of the new files, {_REBUILD}",
            )
        if job.spec.schema != self.former.schema:
            raise FingerprintMismatchError(
                f"{self.root}: the new rows give the features {', '.join(map(str, job.spec.schema.features))}, "
                f"expected {', '.join(map(str, self.former.schema.features))}",
                remedy=f"give the new files the columns and types of the old files, {_REBUILD}",
            )
        splits = dict(job.splits)
        for name in splits.keys() & self.former.splits.keys():
            tasks, rows = len(self.former.splits[name].by_task()), self._rows_before(name)
            splits[name] = dataclasses.replace(splits[name], tasks_before=tasks, ranges_before=rows)
        return dataclasses.replace(job, splits=splits, appends_to=self.former.fingerprint)

    def _rows_before(self, split: str) -> RowRanges:
        return tuple((start, stop) for start, stop in self.former.source["splits"].get(split, ()))

    def _require_same_options(self, items: Mapping[str, Any], *, ignored: tuple[str, ...] = ()) -> None:
        aside = {"append", "form", "source", *ignored}  # `continued` compares the record form
        before, now = (
            {name: value for name, value in options.items() if name not in aside}
            for options in (self.former.options, items)
        )
        if listed := fingerprint.differences(before, now):
            share = "; hold out a share such as 1%, not a number of rows" if "hold_out" in listed else ""
            raise FingerprintMismatchError(
                f"{self.root}: --append needs the same options and versions as the dataset, but some differ ({listed})",
                remedy=f"give the same options, tokenizer and versions as before{share}, {_REBUILD}",
            )

    def _other_source(self, change: str) -> FingerprintMismatchError:
        return FingerprintMismatchError(
            f"{self.root}: --append adds new rows that follow the old rows of the same source, but {change}",
            remedy=f"put new rows into new files, and give the folder with all files, old and new, {_REBUILD}",
        )


def _source_change(before: Mapping[str, Any], listing: SourceListing, config: SourceConfig) -> str:
    now = listing.identity
    if before == now:
        return ""
    details = ({name: identity[name] for name in identity.keys() - {"files", "revision"}} for identity in (before, now))
    if listed := fingerprint.differences(*details):
        return f"this is another source ({listed})"
    old, later = before.get("files") or [], list(listing.entries)
    if now["kind"] == "hub":
        # An hf:// address can include the revision, but only if the name has an owner.
        name, revision = before["name"], before["revision"]
        dataset = f"hf://datasets/{name}@{revision}" if "/" in name else name
        old = resolve.resolve(dataclasses.replace(config, dataset=dataset, revision=revision)).entries
    if isinstance(old, Mapping):  # one digest for many files
        count = old["count"]
        if len({entry["split"] for entry in later}) > 1:
            return f"the manifest has one digest for all of its {count:,} files, which does not tell the splits apart"
        if hashlib.sha256(json.dumps(later[:count], sort_keys=True).encode()).hexdigest() != old["sha256"]:
            return f"its first {count:,} files are not the files that the dataset was made from"
        return ""
    for split in dict.fromkeys(entry["split"] for entry in old):
        files, later_files = ([entry for entry in entries if entry["split"] == split] for entries in (old, later))
        for index, file in enumerate(files):
            if index >= len(later_files) or not is_same_file(file, later_files[index]):
                return _file_change(file, later_files, index, split=split)
    return ""


def _file_change(file: Entry, later: Sequence[Entry], index: int, *, split: str) -> str:
    name = file["name"]
    if any(is_same_file(file, entry) for entry in later[index:]):
        return f"file {later[index]['name']} of split {split!r} is read before {name}, which renumbers the old rows"
    same_name = [entry for entry in later if entry["name"] == name]
    if not same_name:
        return f"file {name} of split {split!r} is gone"
    before, now = some(file["bytes"], "byte"), some(same_name[0]["bytes"], "byte")
    change = f"it had {before}, and now has {now}" if before != now else f"it still has {now}, but other content"
    return f"file {name} of split {split!r} has changed: {change}"


def _rest(before: RowRanges, requested: RowRanges) -> RowRanges | None:
    rest = list(reversed(requested))
    for start, stop in before:
        while start < stop:
            if not rest or rest[-1][0] != start:
                return None  # `requested` does not begin with all rows of `before`
            _, end = rest.pop()
            start = min(end, stop)
            if start < end:
                rest.append((start, end))
    return tuple(reversed(rest))


def _shown(ranges: RowRanges) -> str:
    return listing([f"[{start}, {stop})" for start, stop in ranges])
