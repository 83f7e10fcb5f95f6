"""Check that a source is the one of an existing dataset, only longer: old files and old rows come first.

    manifest    files of each split, rows of each split ──┐
                                                          ├──► the rows that follow those, or a refusal
    request     files listed now, rows asked for ─────────┘

What cannot be compared, such as a file that has grown, is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.prepare.dataset import fingerprint, source_record
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.plan.planning import RowRanges
from pipelines.prepare.sources.resolve import resolve
from pipelines.prepare.sources.resolve.data_files import SourceListing
from tfrecord_io.errors import FingerprintMismatchError
from tfrecord_io.manifest import Manifest

__all__ = ["ANEW", "require_grown", "rows_after", "rows_before"]

ANEW = "or build anew, without --append and with another --output or --overwrite"

Entries = Sequence[Mapping[str, Any]]


def require_grown(former: Manifest, listing: SourceListing, config: SourceConfig, *, root: str) -> None:
    """Check that the files of before are the first ones of each split, with the same content.

    Raises: FingerprintMismatchError; SourceError if an earlier revision cannot be listed any more.
    """
    before, now = source_record.identity_of(former), listing.identity
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
    """Return whether two files have the same content. A name may change where the digest is of the content alone."""
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
        remedy="put new rows into new files whose names sort behind the others, and name the folder of all files, old "
        f"and new, {ANEW}",
    )


def rows_before(former: Manifest, split: str) -> RowRanges:
    """Return the rows of a split that are in the dataset, none for a split that is not."""
    return tuple((start, stop) for start, stop in former.source["splits"].get(split, ()))


def rows_after(former: Manifest, split: str, source_split: str, asked: RowRanges, *, root: str) -> RowRanges:
    """Return the rows that are asked for and not in the dataset.

    Raises: FingerprintMismatchError if the rows of before are not the first ones, or of another split of the source.
    """
    before = rows_before(former, split)
    origin = source_record.origin_of(former, split)
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
