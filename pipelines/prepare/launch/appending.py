"""Appending to a finished dataset: new rows of the same source, while nothing else differs.

opening the request      require_same_request   same options, old files first
locating its rows        known_rows             the rows of files that nobody reads again
completing its job       new_rows               the rows behind the old ones, which keep their numbers
                         items, continued       the fingerprint and the job of a further generation
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.prepare.dataset import fingerprint, own_files, plan_files, source_record
from pipelines.prepare.dataset.job import Job, JobSplit
from pipelines.prepare.dataset.own_files import generations_of
from pipelines.prepare.launch import grown_source
from pipelines.prepare.launch.grown_source import ANEW, rows_after, rows_before
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.resolve.data_files import SourceListing
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from tfrecord_io.errors import FingerprintMismatchError, ManifestError, OutputError, SourceError
from tfrecord_io.format.manifest_checks import REMAKE
from tfrecord_io.manifest import Manifest

__all__ = ["Append", "NothingNewError"]


class NothingNewError(SourceError):
    """The source has no rows that are not in the dataset yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Append:
    """An append to the finished dataset in `root`, whose manifest is `former`."""

    root: str
    former: Manifest

    @classmethod
    def to(cls, root: str) -> Append:
        """Begin an append. Raises: OutputError if there is no dataset in `root`; ManifestError if it is damaged."""
        found = own_files.read_manifest(root)
        if found is None:
            raise OutputError(
                f"{root}: no {own_files.OWN_FILES[0]}, expected a finished dataset to append to",
                remedy="run the build to its end without --append, or name the --output of one that has finished",
            )
        source = found.source
        if not found.splits.keys() <= source.get("splits", {}).keys() or not {"files", "revision"} & source.keys():
            raise ManifestError(f"{root}: the manifest does not say which rows of which files it is of", remedy=REMAKE)
        return cls(root=root, former=found)

    def with_known_lengths(self, config: PrepareConfig) -> PrepareConfig:
        """Return the config with the lengths that `--bucket-lengths auto:K` chose when the dataset was made."""
        layout, lengths = config.layout, self.former.bucket_lengths
        if not bucket_lengths.automatic_count(layout.bucket_lengths) or not lengths:
            return config
        layout = dataclasses.replace(layout, bucket_lengths=lengths, max_length=lengths[-1])
        return dataclasses.replace(config, layout=layout)

    def require_same_request(self, config: PrepareConfig, listing: SourceListing, items: Mapping[str, Any]) -> None:
        """Check that the request can be appended, as far as that shows before rows are located.

        `items` are what the fingerprint covers, the rows to hold out aside.

        Raises: FingerprintMismatchError; SourceError if an earlier revision cannot be listed any more.
        """
        # The name of a dataset comes from its source: new files alone would be said to differ by that.
        grown_source.require_grown(self.former, listing, config.source, root=self.root)
        self._require_same_options(items, aside=("hold_out",))

    def known_rows(self, config: PrepareConfig) -> dict[str, np.ndarray]:
        """Return the rows of each stored file, int64 [F], of those splits of the source that are in the dataset as a
        whole.

        Such files need not be ingested again. User functions are tried on rows of the whole split, so with them there
        are none.
        """
        if config.source.functions:
            return {}
        found: dict[str, np.ndarray] = {}
        for generation in reversed(generations_of(self.former)):
            for split in generation.rows:
                folder = plan_files.folder(self.root, generation.fingerprint, split)
                if (name := source_record.origin_of(self.former, split)) not in found:
                    found[name] = plan_files.read_file_rows(folder)
        return {name: rows for name, rows in found.items() if self._is_complete(name, int(rows.sum()))}

    def new_rows(self, source: Source) -> Source:
        """Return the source with those of its splits that have new rows, and with these alone.

        Raises: NothingNewError if none has; FingerprintMismatchError if the rows of before are not the first ones.
        """
        found = {}
        for name, split in source.splits.items():
            if ranges := rows_after(self.former, name, split.source_split, split.ranges, root=self.root):
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
        """Return what the fingerprint covers with the new rows, which are those of `splits`.

        Raises: FingerprintMismatchError if something besides the source differs from before.
        """
        self._require_same_options(items)
        rows = {name: [list(span) for span in split.ranges] for name, split in sorted(splits.items())}
        return {**items, "append": {"to": self.former.fingerprint, "rows": rows}}

    def continued(self, job: Job, in_rows: ColumnPlan) -> Job:
        """Return the job with what the dataset has of its splits already.

        `in_rows` has the names of labels in the new rows.

        Raises: FingerprintMismatchError if these have a class that the dataset does not know, or other features.
        """
        self._require_same_classes(in_rows)
        if job.spec.schema != self.former.schema:
            raise FingerprintMismatchError(
                f"{self.root}: the new rows give the features {', '.join(map(str, job.spec.schema.features))}, "
                f"expected {', '.join(map(str, self.former.schema.features))}",
                remedy=f"give the new files the columns and types of the others, {ANEW}",
            )
        splits = {name: self._continued(name, split) for name, split in job.splits.items()}
        return dataclasses.replace(job, splits=splits, appends_to=self.former.fingerprint)

    def _continued(self, name: str, split: JobSplit) -> JobSplit:
        tasks = len(self.former.splits[name].by_task()) if name in self.former.splits else 0
        return dataclasses.replace(split, tasks_before=tasks, ranges_before=rows_before(self.former, name))

    def _is_complete(self, source_split: str, rows: int) -> bool:
        """Return whether each split made of a split of the source has its rows [0, `rows`) in this order."""
        made_of_it = [name for name in self.former.splits if source_record.origin_of(self.former, name) == source_split]
        return all(rows_before(self.former, name) == ((0, rows),) for name in made_of_it)

    def _require_same_options(self, items: Mapping[str, Any], *, aside: tuple[str, ...] = ()) -> None:
        """Check that what the fingerprint covers is as it was, the source aside. Raises: FingerprintMismatchError."""
        ignored = {"append", "source", *aside}
        before, now = (
            {name: each for name, each in some.items() if name not in ignored} for some in (self.former.options, items)
        )
        if listed := fingerprint.differences(before, now):
            share = "; hold out a share such as 1%, not a number of rows" if "hold_out" in listed else ""
            raise FingerprintMismatchError(
                f"{self.root}: --append adds rows made in the same way, but this differs ({listed})",
                remedy=f"give the same options, tokenizer and versions as before{share}, {ANEW}",
            )

    def _require_same_classes(self, in_rows: ColumnPlan) -> None:
        known = self.former.label_names or ()
        plans = [plan for plan in (in_rows.label, in_rows.tags) if plan is not None]
        new = [name for plan in plans for name in plan.names or () if name not in known]
        is_other = any(plan.kind == "class" and plan.names != self.former.label_names for plan in plans)
        if new or is_other:
            others = ", ".join(map(repr, new[:5])) or "in another order"
            raise FingerprintMismatchError(
                f"{self.root}: the new rows have other classes ({others}), expected "
                f"those of the dataset ({', '.join(map(repr, known[:5]))}{', …' if len(known) > 5 else ''}): its class "
                "ids are fixed",
                remedy=f"leave such rows out of the new files, {ANEW}",
            )
