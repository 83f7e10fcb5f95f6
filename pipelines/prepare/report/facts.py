"""The first and the last section: figures of every split, and the manifest's facts with the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipelines.prepare.report.elements import Group, Section, Table
from pipelines.prepare.report.subject import Subject, count, size
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_secrets

__all__ = ["facts_section", "overview_section"]

_LISTED = 100


def overview_section(subject: Subject) -> Section:
    """Return the section with the figures of every split."""
    table = _finished_table(subject.manifest) if subject.is_finished else _estimated_table(subject)
    texts: tuple[str, ...] = ()
    if subject.more_splits:
        texts = (
            f"The sections below leave out {len(subject.more_splits):,} splits: {', '.join(subject.more_splits)}.",
        )
    return Section(name="overview", title="At a glance", says="", groups=(Group(tables=(table,), texts=texts),))


def _finished_table(manifest: Manifest) -> Table:
    rows = []
    for name, split in manifest.splits.items():
        ledger = split.ledger
        figures = (ledger.rows_in, ledger.rows_left_out, sum(ledger.unusable.values()), split.num_examples)
        more = (split.num_tokens, ledger.tokens_cut, len(split.shards))
        rows.append((name, *map(count, (*figures, *more)), size(split.num_bytes)))
    head = ("split", "rows", "left out", "rejected", "records", "tokens", "tokens cut", "shards", "bytes")
    return Table(caption="Splits (exact, from the manifest)", head=head, rows=tuple(rows), numbers=8)


def _estimated_table(subject: Subject) -> Table:
    rows = []
    for split in subject.splits:
        assert split.estimate is not None, "a source has an estimate"
        each = split.estimate
        left_out = each.rows_filtered + each.rows_in_other_splits
        figures = (each.rows, left_out, each.rows_rejected, each.num_tokens, each.shards)
        rows.append((each.split, *map(count, figures), size(each.num_bytes)))
    head = ("split", "rows", "left out", "rejected", "tokens", "shards", "bytes")
    return Table(caption="What a build would make, estimated from a sample", head=head, rows=tuple(rows), numbers=6)


def facts_section(subject: Subject) -> Section:
    """Return the section with the manifest's facts, the features, and the command."""
    manifest = subject.manifest
    groups = [
        Group(title="Features", tables=(_features(manifest),)),
        Group(title="Facts", tables=(_facts(manifest),)),
        Group(
            title="Command",
            texts=(
                "The command that makes this dataset, written from its manifest. Options that change no byte, such as "
                "--workers, are not recorded."
                if subject.is_finished
                else "The command that would make it.",
            ),
            command=subject.command,
        ),
    ]
    return Section(name="facts", title="Facts", says="", groups=tuple(groups))


def _features(manifest: Manifest) -> Table:
    rows = tuple(
        (feature.name, feature.dtype, str(list(feature.shape)), feature.meaning) for feature in manifest.schema.features
    )
    return Table(caption="Features of every record", head=("feature", "dtype", "shape", "meaning"), rows=rows)


def _facts(manifest: Manifest) -> Table:
    facts = manifest.tokenizer
    rows = [("name", manifest.name)]
    if manifest.fingerprint:
        rows.append(("fingerprint", manifest.fingerprint))
    rows += [(f"layout: {name}", _text(value)) for name, value in manifest.layout.items()]
    rows += [
        ("tokenizer", f"{facts.name} ({facts.kind})"),
        ("vocabulary", count(facts.vocab_size)),
        ("padding side", facts.padding_side),
        ("tokenizer content", facts.content_sha256),
        ("compression", manifest.compression),
    ]
    rows += [(f"source: {name}", _text(value)) for name, value in _flat(manifest.source)]
    rows += [(f"version: {name}", str(value)) for name, value in manifest.versions.items()]
    for split, engines in manifest.engines.get("splits", {}).items():
        for engine, counts in engines.items():
            checked = f"{count(counts['rows'])} rows, {count(counts['rows_checked'])} also by the reference"
            rows.append((f"{split} tokenized by {engine}", checked))
    if manifest.label_names is not None:
        rows.append(("label names", _text(", ".join(manifest.label_names[:_LISTED]))))
    return Table(caption="From the manifest", head=("fact", "value"), rows=tuple(rows))


def _flat(source: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what the source was; of many files, the first ones."""
    found = []
    for name, value in source.items():
        if name == "files" and isinstance(value, list):
            names = [str(each.get("name", "")) if isinstance(each, Mapping) else str(each) for each in value[:_LISTED]]
            more = f" and {len(value) - _LISTED:,} more" if len(value) > _LISTED else ""
            found.append((f"{len(value):,} files", ", ".join(names) + more))
        else:
            found.append((name, value))
    return found


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    text = without_secrets(text)
    return text if len(text) <= 1000 else f"{text[:1000]} …"
