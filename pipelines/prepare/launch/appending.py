"""Append new rows of the same source to a finished dataset, with unchanged options.

open the request     former_files           read the old files first
                     require_same_request   check that options and old files are the same
locate its rows      known_rows             count the rows of old files, which are not read again
complete its job     new_rows               keep only the rows after the old ones, which keep their numbers
                     items, continued       make the fingerprint and the job of a further generation

The source must have exactly the files and rows in the manifest, and others after them.
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
from pipelines.prepare.plan.planning import RowRanges
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.resolve import resolve
from pipelines.prepare.sources.resolve.data_files import is_same_file
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tfrecord_io.errors import FingerprintMismatchError, ManifestError, OutputError, SourceError
from tfrecord_io.manifest import REMAKE, Manifest

_ANEW = "or build again, without --append and with another --output or --overwrite"

Entry = Mapping[str, Any]


class NothingNewError(SourceError):
    """The source has no rows that are not in the dataset yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Append:
    """Append to the finished dataset in `root`, which has the manifest `former`."""

    root: str
    former: Manifest

    @classmethod
    def to(cls, root: str) -> Append:
        """Return an append to `root`. Raises: OutputError if it holds no dataset; ManifestError if it is damaged."""
        found = own_files.read_manifest(root)
        if found is None:
            raise OutputError(
                f"{root}: no {own_files.OWN_FILES[0]}, expected a finished dataset to append to",
                remedy="run the build to its end without --append, or name the --output of one that has finished",
            )
        source = found.source
        if not found.splits.keys() <= source.get("splits", {}).keys() or not {"files", "revision"} & source.keys():
            raise ManifestError(f"{root}: the manifest does not name its rows and files", remedy=REMAKE)
        return cls(root=root, former=found)

    def with_known_lengths(self, config: PrepareConfig) -> PrepareConfig:
        """Return the config with the lengths that `--bucket-lengths auto:K` chose for the dataset."""
        layout, lengths = config.layout, self.former.bucket_lengths
        if not bucket_lengths.automatic_count(layout.bucket_lengths) or not lengths:
            return config
        layout = dataclasses.replace(layout, bucket_lengths=lengths, max_length=lengths[-1])
        return dataclasses.replace(config, layout=layout)

    @property
    def former_files(self) -> Sequence[Entry]:
        """Entries of the dataset's files; empty for the hub, and for more files than the manifest lists."""
        return source_record.files_of(self.former)

    def require_same_request(self, config: PrepareConfig, listing: SourceListing, items: Mapping[str, Any]) -> None:
        """Check that options and source match the dataset, as far as possible before rows are located.

        `items`: the fingerprint's content, without hold-outs.

        Raises: FingerprintMismatchError; SourceError if an earlier revision cannot be listed any more.
        """
        # The source first: the options contain a default name that depends on it.
        if why := _why_other_source(source_record.identity_of(self.former), listing, config.source):
            raise self._other_source(why)
        self._require_same_options(items, aside=("hold_out",))

    def known_rows(self, config: PrepareConfig) -> dict[str, np.ndarray]:
        """Return the rows per file, int64 [F], for the source splits that are completely in the dataset.

        Empty with user functions, which are tried on rows of the whole split.
        """
        if config.source.functions:
            return {}
        found: dict[str, np.ndarray] = {}
        made_of = {split: source_record.origin_of(self.former, split) for split in self.former.splits}
        for generation in reversed(own_files.generations_of(self.former)):  # the latest knows the most files
            for split in generation.rows:
                if made_of[split] not in found:
                    found[made_of[split]] = plan_files.read_file_rows(self.root, generation.fingerprint, split)
        # A source split is complete if each split made from it has all of its rows in this order.
        in_part = {of for split, of in made_of.items() if self._rows_before(split) != ((0, found[of].sum()),)}
        return {name: rows for name, rows in found.items() if name not in in_part}

    def new_rows(self, source: Source) -> Source:
        """Return the source with only its new rows, and only the splits that have any.

        Raises: NothingNewError; FingerprintMismatchError if the rows in the dataset are not the first ones of a split,
            or come from another split.
        """
        found = {}
        for name, split in source.splits.items():
            before, origin = self._rows_before(name), source_record.origin_of(self.former, name)
            if before and origin != split.source_split:
                raise self._other_source(
                    f"split {name!r} was made of split {origin!r} of the source, now of {split.source_split!r}"
                )
            ranges = _rest(before, split.ranges)
            if ranges is None:
                raise self._other_source(
                    f"split {name!r} has the rows {_shown(before)}, which are not the first ones of the rows asked for "
                    f"now, {_shown(split.ranges)}"
                )
            if ranges:
                found[name] = dataclasses.replace(split, ranges=ranges)
        if not found:
            raise NothingNewError(
                f"{self.root}: the source has no rows that are not in this dataset; nothing was changed",
                remedy="add files to the source first",
            )
        return dataclasses.replace(
            source, splits=found, all_splits={split.source_split: split for split in found.values()}
        )

    def items(self, items: Mapping[str, Any], splits: Mapping[str, SplitSource]) -> dict[str, Any]:
        """Return the fingerprint's content with the new rows of `splits`. Raises: FingerprintMismatchError."""
        self._require_same_options(items)
        rows = {name: [list(span) for span in split.ranges] for name, split in sorted(splits.items())}
        return {**items, "append": {"to": self.former.fingerprint, "rows": rows}}

    def continued(self, job: Job, observed: ColumnPlan) -> Job:
        """Return the job as an append, with the tasks and rows that the dataset already has of each split.

        `observed` has the names of labels in the new rows. Raises: FingerprintMismatchError.
        """
        known = self.former.label_names or ()
        plans = [plan for plan in (observed.label, observed.tags) if plan is not None]
        new = [name for plan in plans for name in plan.names or () if name not in known]
        if new or any(plan.kind == "class" and plan.names != self.former.label_names for plan in plans):
            others = ", ".join(map(repr, new[:5])) or "in another order"
            expected = ", ".join(map(repr, known[:5])) + (", …" if len(known) > 5 else "")
            raise FingerprintMismatchError(
                f"{self.root}: the new rows have other classes ({others}), expected those of the dataset ({expected}): "
                "its class ids are fixed",
                remedy=f"leave such rows out of the new files, {_ANEW}",
            )
        if job.spec.schema != self.former.schema:
            raise FingerprintMismatchError(
                f"{self.root}: the new rows give the features {', '.join(map(str, job.spec.schema.features))}, "
                f"expected {', '.join(map(str, self.former.schema.features))}",
                remedy=f"give the new files the columns and types of the others, {_ANEW}",
            )
        splits = dict(job.splits)
        for name in splits.keys() & self.former.splits.keys():
            tasks, rows = len(self.former.splits[name].by_task()), self._rows_before(name)
            splits[name] = dataclasses.replace(splits[name], tasks_before=tasks, ranges_before=rows)
        return dataclasses.replace(job, splits=splits, appends_to=self.former.fingerprint)

    def _rows_before(self, split: str) -> RowRanges:
        return tuple((start, stop) for start, stop in self.former.source["splits"].get(split, ()))

    def _require_same_options(self, items: Mapping[str, Any], *, aside: tuple[str, ...] = ()) -> None:
        ignored = {"append", "form", "source", *aside}  # `continued` compares the form
        before, now = (
            {name: each for name, each in some.items() if name not in ignored} for some in (self.former.options, items)
        )
        if listed := fingerprint.differences(before, now):
            share = "; hold out a share such as 1%, not a number of rows" if "hold_out" in listed else ""
            raise FingerprintMismatchError(
                f"{self.root}: --append adds rows made in the same way, but this differs ({listed})",
                remedy=f"give the same options, tokenizer and versions as before{share}, {_ANEW}",
            )

    def _other_source(self, why: str) -> FingerprintMismatchError:
        return FingerprintMismatchError(
            f"{self.root}: --append adds rows after the old rows of the same source, but {why}",
            remedy=f"put new rows into new files, and name the folder of all files, old and new, {_ANEW}",
        )


def _why_other_source(before: Mapping[str, Any], listing: SourceListing, config: SourceConfig) -> str:
    """Return why the source is not the former one with files added; empty if it is."""
    now = listing.identity
    if before == now:
        return ""
    but_content = ({name: each[name] for name in each.keys() - {"files", "revision"}} for each in (before, now))
    if listed := fingerprint.differences(*but_content):
        return f"it is another source ({listed})"
    old, later = before.get("files"), list(listing.entries)
    if now["kind"] == "hub":
        # An hf:// address includes the revision, but needs an owner.
        name, revision = before["name"], before["revision"]
        dataset = f"hf://datasets/{name}@{revision}" if "/" in name else name
        old = resolve.resolve(dataclasses.replace(config, dataset=dataset, revision=revision)).entries
    if isinstance(old, Mapping):  # one digest of many files
        count = old["count"]
        if len({entry["split"] for entry in later}) > 1:
            return f"its {count:,} files are listed by one digest, which cannot tell its splits"
        if hashlib.sha256(json.dumps(later[:count], sort_keys=True).encode()).hexdigest() != old["sha256"]:
            return f"its first {count:,} files are not those that the dataset was made of"
        return ""
    by_split: dict[str, list[Entry]] = {}
    for entry in old or ():
        by_split.setdefault(entry["split"], []).append(entry)
    for split, files in by_split.items():
        of_split = [entry for entry in later if entry["split"] == split]
        for index, file in enumerate(files):
            if index >= len(of_split) or not is_same_file(file, of_split[index]):
                return _what_happened(file, of_split, index, split=split)
    return ""


def _what_happened(file: Entry, later: Sequence[Entry], index: int, *, split: str) -> str:
    name = file["name"]
    if any(is_same_file(file, each) for each in later[index:]):
        return (
            f"file {later[index]['name']} of split {split!r} comes before {name} in the order in which files are read, "
            "so that old rows would get other numbers"
        )
    same_name = [each for each in later if each["name"] == name]
    if not same_name:
        return f"file {name} of split {split!r} is gone"
    before, now = file["bytes"], same_name[0]["bytes"]
    return f"file {name} of split {split!r} has changed: it had {before:,} bytes, now it has {now:,}"


def _rest(before: RowRanges, asked: RowRanges) -> RowRanges | None:
    """Return the `asked` rows after the first ones, which must be `before`; None if they are not."""
    rest = list(reversed(asked))
    for start, stop in before:
        while start < stop:
            if not rest or rest[-1][0] != start:
                return None
            _, end = rest.pop()
            start = min(end, stop)
            if start < end:
                rest.append((start, end))
    return tuple(reversed(rest))


def _shown(ranges: RowRanges) -> str:
    return ", ".join(f"[{start}, {stop})" for start, stop in ranges[:5]) + (", …" if len(ranges) > 5 else "")
