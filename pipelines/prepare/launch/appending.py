"""Appending to a finished dataset: new rows of the same source, while nothing else differs.

    manifest    options, files, rows of each split ──┐
                                                     ├──► the rows that follow those, or a refusal
    request     options, files, rows asked for ──────┘

Old rows keep their numbers: the files of before are the first of their split, with the content that they had, and the
rows of before are the first that are asked for. What cannot be compared, such as a file that has grown, is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.prepare.dataset import fingerprint, own_files, plan_files, source_record
from pipelines.prepare.dataset.generations import RowRanges, generations_of
from pipelines.prepare.dataset.job import JobSplit
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.config import PrepareConfig, SourceConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.columns.labels import LabelPlan
from pipelines.prepare.sources.files.data_files import SourceListing
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.splits import resolve
from tfrecord_io.errors import FingerprintMismatchError, FormatError, ManifestError, OutputError, SourceError
from tfrecord_io.format.json_fields import WRONG, count, mapping
from tfrecord_io.format.manifest_checks import REMAKE
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

__all__ = [
    "NothingNewError",
    "continued",
    "known_rows",
    "new_rows",
    "require_new_rows",
    "require_same_options",
    "require_same_schema",
    "require_same_source",
    "to_append_to",
    "with_known_lengths",
    "with_manifest_facts",
]

_ANEW = "or build anew, without --append and with another --output or --overwrite"

Entries = Sequence[Mapping[str, Any]]


class NothingNewError(SourceError):
    """The source has no rows that are not in the dataset yet."""


def to_append_to(root: str) -> Manifest:
    """Return the finished dataset in `root`. Raises: OutputError if there is none; ManifestError if it is damaged."""
    found = own_files.read_manifest(root)
    if found is None:
        raise OutputError(
            f"{root}: no {own_files.OWN_FILES[0]}, expected a finished dataset to append to",
            remedy="run the build to its end without --append, or name the --output of one that has finished",
        )
    source = found.source
    if not found.splits.keys() <= source.get("splits", {}).keys() or not {"files", "revision"} & source.keys():
        raise ManifestError(f"{root}: the manifest does not say which rows of which files it is of", remedy=REMAKE)
    return found


def with_known_lengths(config: PrepareConfig, former: Manifest) -> PrepareConfig:
    """Return the config with the lengths that `--bucket-lengths auto:K` chose when the dataset was made."""
    layout = config.layout
    if not bucket_lengths.automatic_count(layout.bucket_lengths) or not former.bucket_lengths:
        return config
    lengths = dataclasses.replace(layout, bucket_lengths=former.bucket_lengths, max_length=former.bucket_lengths[-1])
    return dataclasses.replace(config, layout=lengths)


def require_same_options(former: Manifest, items: Mapping[str, Any], *, root: str, early: bool = False) -> None:
    """Check that what the fingerprint covers is as it was, the source aside.

    `early`: before rows are located, when it is not known yet which rows to hold out.

    Raises: FingerprintMismatchError.
    """
    aside = {"append", "source", *(["hold_out"] if early else [])}
    before, now = ({name: each for name, each in some.items() if name not in aside} for some in (former.options, items))
    if listed := fingerprint.differences(before, now):
        share = "; hold out a share such as 1%, not a number of rows" if "hold_out" in listed else ""
        raise FingerprintMismatchError(
            f"{root}: --append adds rows made in the same way, but this differs ({listed})",
            remedy=f"give the same options, tokenizer and versions as before{share}, {_ANEW}",
        )


def require_same_source(former: Manifest, listing: SourceListing, config: SourceConfig, *, root: str) -> None:
    """Check that the files of before are the first ones of each split, with the same content.

    Raises: FingerprintMismatchError; SourceError if an earlier revision cannot be listed any more.
    """
    before = {name: value for name, value in former.source.items() if name not in ("splits", "origins")}
    now = listing.identity
    if before == now:
        return
    if listed := fingerprint.differences(_but_content(before), _but_content(now)):
        raise _another(root, f"it is another source ({listed})")
    old = _at_revision(before, config) if now["kind"] == "hub" else before["files"]
    if isinstance(old, Mapping):
        _require_first(old, listing.entries, root=root)
        return
    by_split: dict[str, list[Mapping[str, Any]]] = {}
    for entry in old:
        by_split.setdefault(entry["split"], []).append(entry)
    for split, files in by_split.items():
        later = [entry for entry in listing.entries if entry["split"] == split]
        for index, file in enumerate(files):
            if index >= len(later) or not _is_same_file(file, later[index]):
                raise _another(root, _what_happened(file, later, index, split=split))


def _at_revision(identity: Mapping[str, Any], config: SourceConfig) -> Entries:
    """Return the files of a dataset of the hub at the revision of `identity`. Raises: SourceError."""
    name, revision = identity["name"], identity["revision"]
    # An address names the revision itself, and cannot be taken for a local folder; it needs an owner.
    dataset = f"hf://datasets/{name}@{revision}" if "/" in name else name
    return resolve.resolve(dataclasses.replace(config, dataset=dataset, revision=revision)).entries


def _but_content(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name not in ("files", "revision")}


def _is_same_file(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two files have the same content. A name may change where the digest is of the content alone."""
    aside = {"split", *(["name"] if "xxh3" in before or len(str(before.get("mark"))) in (40, 64) else [])}
    return {k: v for k, v in before.items() if k not in aside} == {k: v for k, v in now.items() if k not in aside}


def _what_happened(file: Mapping[str, Any], later: Entries, index: int, *, split: str) -> str:
    name = file["name"]
    if any(_is_same_file(file, each) for each in later[index:]):
        return (
            f"file {later[index]['name']} of split {split!r} comes before {name} in the order in which files are read, "
            "so that old rows would get other numbers"
        )
    same_name = [each for each in later if each["name"] == name]
    if not same_name:
        return f"file {name} of split {split!r} is gone"
    return (
        f"file {name} of split {split!r} has changed: it had {file['bytes']:,} bytes, now it has "
        f"{same_name[0]['bytes']:,}"
    )


def _require_first(before: Mapping[str, Any], now: Entries, *, root: str) -> None:
    """Check that the first of many files have the digest that the manifest has of all of them."""
    if len({entry["split"] for entry in now}) > 1:
        raise _another(root, f"its {before['count']:,} files are listed by one digest, which cannot tell its splits")
    first = list(now[: before["count"]])
    if hashlib.sha256(json.dumps(first, sort_keys=True).encode()).hexdigest() != before["sha256"]:
        raise _another(root, f"its first {before['count']:,} files are not those that the dataset was made of")


def _another(root: str, why: str) -> FingerprintMismatchError:
    return FingerprintMismatchError(
        f"{root}: --append adds rows behind those of the same source, but {why}",
        remedy=f"put new rows into new files whose names sort behind the others, {_ANEW}",
    )


def known_rows(former: Manifest, config: PrepareConfig) -> dict[str, np.ndarray]:
    """Return the rows of each stored file, int64 [F], of those splits of the source that are in the dataset as a whole.

    Such files need not be ingested again. User functions are tried on rows of the whole split, so with them there are
    none.
    """
    if config.source.functions:
        return {}
    found: dict[str, np.ndarray] = {}
    for generation in reversed(generations_of(former)):
        for split in generation.rows:
            source_split = former.source.get("origins", {}).get(split, split)
            if source_split not in found:
                folder = plan_files.folder(config.output.root, generation.fingerprint, split)
                found[source_split] = plan_files.read_file_rows(folder)
    return {name: rows for name, rows in found.items() if _is_complete(former, name, int(rows.sum()))}


def _is_complete(former: Manifest, source_split: str, rows: int) -> bool:
    """Whether each split made of a split of the source has its rows [0, `rows`) in this order."""
    source = former.source
    made_of_it = [name for name in former.splits if source.get("origins", {}).get(name, name) == source_split]
    return all(_rows_before(former, name) == ((0, rows),) for name in made_of_it)


def _rows_before(former: Manifest, split: str) -> RowRanges:
    return tuple((start, stop) for start, stop in former.source["splits"].get(split, ()))


def require_new_rows(former: Manifest, listing: SourceListing, config: PrepareConfig) -> None:
    """Check, where the source is the very same and its rows are known, that more of them are asked for than before.

    Raises: NothingNewError.
    """
    identity = {name: value for name, value in former.source.items() if name not in ("splits", "origins")}
    if identity != listing.identity:
        return
    root = config.output.root
    try:
        rows = source_record.read(root, former.fingerprint)["rows"]
        lengths = {name: count(number) for name, number in mapping(rows).items()}
    except (FormatError, *WRONG):
        return
    needed = selection.needed_source_splits(config.source, list(listing.splits))
    if not set(needed) <= set(lengths):
        return
    chosen = selection.select_ranges(config.source, {name: lengths[name] for name in needed})
    if not any(_after(former, each.name, each.source_split, each.ranges, root=root) for each in chosen.values()):
        raise _nothing_new(root)


def new_rows(former: Manifest, chosen: Mapping[str, SplitSource], *, root: str) -> dict[str, SplitSource]:
    """Return those of the chosen splits that have new rows, with these alone.

    Raises: NothingNewError if none has; FingerprintMismatchError if the rows of before are not the first ones.
    """
    found = {}
    for name, split in chosen.items():
        if ranges := _after(former, name, split.source_split, split.ranges, root=root):
            found[name] = dataclasses.replace(split, ranges=ranges)
    if not found:
        raise _nothing_new(root)
    return found


def _nothing_new(root: str) -> NothingNewError:
    return NothingNewError(
        f"{root}: the source has no rows that are not in this dataset; nothing was changed",
        remedy="add files to the source first",
    )


def _after(former: Manifest, split: str, source_split: str, asked: RowRanges, *, root: str) -> RowRanges:
    """Return the rows that are asked for and not in the dataset. Raises: as `new_rows`."""
    before = _rows_before(former, split)
    origin = former.source.get("origins", {}).get(split, split)
    if before and origin != source_split:
        raise _another(root, f"split {split!r} was made of split {origin!r} of the source, now of {source_split!r}")
    ranges = _rest(before, asked)
    if ranges is None:
        raise _another(
            root,
            f"split {split!r} has the rows {_shown(before)}, which are not the first ones of the rows asked for now, "
            f"{_shown(asked)}",
        )
    return ranges


def _rest(before: RowRanges, asked: RowRanges) -> RowRanges | None:
    """Return the asked rows behind the first ones, which must be `before`; None if they are not."""
    rest = list(reversed(asked))
    for start, stop in before:
        at = start
        while at < stop:
            if not rest or rest[-1][0] != at:
                return None
            low, high = rest.pop()
            at = min(high, stop)
            if at < high:
                rest.append((at, high))
            assert at > low, "ranges are not empty"
    return tuple(reversed(rest))


def _shown(ranges: RowRanges) -> str:
    return ", ".join(f"[{start}, {stop})" for start, stop in ranges[:5]) + (", …" if len(ranges) > 5 else "")


def continued(former: Manifest, splits: Mapping[str, JobSplit]) -> dict[str, JobSplit]:
    """Return the splits of a job with what the dataset has of them already."""
    return {
        name: dataclasses.replace(
            split,
            tasks_before=len(former.splits[name].by_task()) if name in former.splits else 0,
            ranges_before=_rows_before(former, name),
        )
        for name, split in splits.items()
    }


def with_manifest_facts(plan: ColumnPlan, manifest: Manifest) -> ColumnPlan:
    """Complete a plan from the manifest with what only rows show: names of labels, lengths of vectors."""

    def with_names(label: LabelPlan | None) -> LabelPlan | None:
        return dataclasses.replace(label, names=manifest.label_names) if label and label.kind == "string" else label

    known = {feature.name: feature.shape for feature in manifest.schema.features}
    kept = [dataclasses.replace(each, shape=known.get(each.name, each.shape)) for each in plan.kept]
    return dataclasses.replace(plan, label=with_names(plan.label), tags=with_names(plan.tags), kept=tuple(kept))


def require_same_schema(former: Manifest, found: ColumnPlan, schema: Schema, *, root: str) -> None:
    """Check that the new rows have the features of the dataset, and no class that it does not know.

    `found` has the names of labels in the new rows.

    Raises: FingerprintMismatchError.
    """
    known = former.label_names or ()
    new = [name for name in _names(found) if name not in known]
    is_other = any(
        plan is not None and plan.kind == "class" and plan.names != former.label_names for plan in _of(found)
    )
    if new or is_other:
        others = ", ".join(map(repr, new[:5])) or "in another order"
        raise FingerprintMismatchError(
            f"{root}: the new rows have other classes ({others}), expected "
            f"those of the dataset ({', '.join(map(repr, known[:5]))}{', …' if len(known) > 5 else ''}): its class ids "
            "are fixed",
            remedy=f"leave such rows out of the new files, {_ANEW}",
        )
    if schema != former.schema:
        raise FingerprintMismatchError(
            f"{root}: the new rows give the features {', '.join(map(str, schema.features))}, expected "
            f"{', '.join(map(str, former.schema.features))}",
            remedy=f"give the new files the columns and types of the others, {_ANEW}",
        )


def _of(plan: ColumnPlan) -> Iterable[LabelPlan | None]:
    return plan.label, plan.tags


def _names(plan: ColumnPlan) -> list[str]:
    return [name for each in _of(plan) if each is not None for name in each.names or ()]
