"""Report of a finished dataset, made from its manifest and a sample of its records."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.audit.decode import decoded_rows, load_tokenizer
from pipelines.prepare.dataset import own_files, rejected_rows, source_record
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.dataset.rejected_rows import RejectedContent
from pipelines.prepare.report import tables
from pipelines.prepare.report.page import Group, Section, Table, render
from pipelines.prepare.report.subject import SplitSubject, Subject, sampled_records, shortened
from tfrecord_io.errors import ConfigError, FormatError
from tfrecord_io.manifest import Split

# Maximum number of splits to show in detail; more would make the page larger than 2 MB.
_SPLITS = 8
_REJECTED = 10
_REJECTED_CHARACTERS = 400
_ROWS = 3
_BY_SPLIT: tuple[tuple[str, str, str, Callable[[SplitSubject, Subject], Group]], ...] = (
    ("lengths", "Lengths", "Rows by their number of tokens, special tokens included.", tables.lengths_group),
    (
        "padding",
        "Padding and cut tokens",
        "Padding takes training time, and a model never sees cut tokens.",
        tables.padding_group,
    ),
    (
        "tokens",
        "Tokens",
        "How often special tokens occur, and how much of the vocabulary is used, without padding.",
        tables.tokens_group,
    ),
    (
        "rows",
        "Rows used and rejected",
        "Every row is used, left out on request (filtered), or rejected for a reason.",
        tables.rows_group,
    ),
)


def of_dataset(root: str) -> bytes:
    """Return a report of the dataset in `root` as HTML. Raises: CorruptRecordError, ManifestError, ReaderError."""
    manifest = own_files.require_manifest(root)
    shown = [name for name, split in manifest.splits.items() if split.shards][:_SPLITS]
    share = 2.0 / max(len(shown), 2)
    try:
        place = str(source_record.read(root, manifest.fingerprint)["dataset"])
    except FormatError:  # many copies lack the work folder
        place = ""
    subject = Subject(
        manifest=manifest,
        tokenizer=load_tokenizer(root),
        splits=tuple(
            SplitSubject(
                name=name,
                parts=sampled_records(root, manifest, name, share=share),
                finished=manifest.splits[name],
                rejected=tuple(_rejected(root, name, manifest.splits[name])),
            )
            for name in shown
        ),
        place=place,
    )
    sections = (
        tables.overview_section(subject),
        *(
            Section(name=name, title=title, says=says, groups=tuple(make(split, subject) for split in subject.splits))
            for name, title, says, make in _BY_SPLIT
        ),
        tables.labels_section(subject),
        _samples_section(root, subject),
        tables.facts_section(subject),
    )
    lengths = ", ".join(f"{length:,}" for length in manifest.bucket_lengths or (manifest.row_length,))
    return render(
        title=f"Report of the dataset {manifest.name}",
        says=f"Layout {manifest.layout['name']}, rows of {lengths} tokens, tokenizer {manifest.tokenizer.name}, "
        f"fingerprint {manifest.fingerprint[:12]}.",
        sections=tuple(section for section in sections if section is not None),
    )


def check_output(path: str) -> None:
    """Check that `path` is not a folder. Raises: ConfigError."""
    local = storage.local_path(path)
    if path.endswith("/") or (local is not None and os.path.isdir(local)):
        cause = f"--output {path}: a folder, expected a file"
        raise ConfigError(cause, remedy=f"give --output {storage.join(path, 'report.html')}")


def _rejected(root: str, name: str, split: Split) -> Iterator[RejectedContent]:
    wanted = dict.fromkeys(split.ledger.rejected, _REJECTED)
    for task, shards in split.by_task().items():
        if not any(wanted.get(reason) for reason in shards[0].ledger.rejected):
            continue
        with contextlib.suppress(FileNotFoundError):  # `verify` reports the missing list
            for row in rejected_rows.read(storage.join(root, rejected_path(name, task))):
                if wanted.get(row.reason):
                    wanted[row.reason] -= 1
                    yield dataclasses.replace(row, content=shortened(row.content, most=_REJECTED_CHARACTERS))
                if not any(wanted.values()):
                    return


def _samples_section(root: str, subject: Subject) -> Section:
    head, groups = ("record", "text", "other features"), []
    for split in subject.splits:
        rows = tuple(
            (f"{row.record} of {row.shard}", shortened(row.text), shortened(_pairs(row.features)))
            for row in decoded_rows(root, subject.manifest, split.name, rows=_ROWS)
        )
        groups.append(Group(title=split.name, tables=(Table(caption="The first rows", head=head, rows=rows),)))
    says = "The text that a model sees, including special tokens, without padding. `inspect --rows N` shows more rows."
    return Section(name="samples", title="Sample rows", says=says, groups=tuple(groups))


def _pairs(features: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in features.items())
