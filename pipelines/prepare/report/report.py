"""Report of a finished dataset, made from its manifest and a sample of its records, some of which are shown.

A report reads the manifest and a few thousand records: of 10 million rows in 100 shards, 5.2 GB, it takes 2 seconds of
processor time, nearly all of it imports, and 290 MB of memory.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit.decode import TokenMarks, input_marks, json_value, load_tokenizer, pieces_of, target_marks
from pipelines.prepare.dataset import own_files, rejected_rows, source_record
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.dataset.rejected_rows import RejectedContent
from pipelines.prepare.report.charts import labels_section, lengths_group, shards_group
from pipelines.prepare.report.page import Group, Section, ShownRow, ShownToken, render
from pipelines.prepare.report.subject import SampledRecords, SplitSubject, Subject, sampled_records
from pipelines.prepare.report.tables import (
    ends_group,
    facts_section,
    overview_section,
    padding_group,
    rows_group,
    tokens_group,
)
from tfrecord_io.errors import ConfigError, FormatError
from tfrecord_io.manifest import Split
from tfrecord_io.schema import ROLES

# Most splits that are shown in detail: a page of 2 MB has room for no more.
_SPLITS = 8
_REJECTED = 10
_REJECTED_CHARACTERS = 400
_ROWS = 4
# Most tokens of a row, and of all rows: a token takes about 80 bytes of a page that should stay below 2 MB.
_MOST_TOKENS, _MOST_TOKENS_IN_ALL = 384, 12_000
_CHARACTERS = 200
_LEGEND = {
    "special": "special token",
    "learned": "to be learned",
    "not-learned": "masked from the loss",
    "answer": "the answer",
    "segment-odd": "document 1, 3, …",
    "segment-even": "document 2, 4, …",
    "tag": "tag of the token beside it",
    "number": "number of the document that begins",
    "padding": "padding",
}
# Sections with a group for each split: name, title, explanation, and the function that makes a group.
_BY_SPLIT: tuple[tuple[str, str, str, Callable[[SplitSubject, Subject], Group]], ...] = (
    (
        "lengths",
        "Lengths",
        "Rows by their number of tokens, special tokens included. A line marks each row length of the dataset.",
        lengths_group,
    ),
    (
        "padding",
        "Padding and cut tokens",
        "Padding costs time in training, and cut tokens are never seen. Waste is both, per token of the rows.",
        padding_group,
    ),
    (
        "tokens",
        "Tokens",
        "How often special tokens occur, and which tokens are the most frequent; padding is left out.",
        tokens_group,
    ),
    (
        "ends",
        "First and last tokens",
        "What documents begin and end with. A model that was trained with a beginning token (BOS or CLS) in front "
        "of each document does much worse without it, and nothing fails.",
        ends_group,
    ),
    (
        "rows",
        "Rows used and rejected",
        "No row is dropped silently: each is used, left out on purpose, or rejected with its reason.",
        rows_group,
    ),
    ("shards", "Shards", "Shards of about one size let every worker read equally fast.", shards_group),
)


def of_dataset(root: str) -> bytes:
    """Return the report of the finished dataset in `root` as an HTML page.

    Raises: ManifestError if there is none, or it is of a newer format; ReaderError if a shard or the tokenizer is
        missing; CorruptRecordError if a sampled record is damaged.
    """
    manifest = own_files.require_manifest(root)
    shown = [name for name, split in manifest.splits.items() if split.shards][:_SPLITS]
    share = 2.0 / max(len(shown), 2)
    try:
        place = str(source_record.read(root, manifest.fingerprint)["dataset"])
    except FormatError:  # the work folder is gone, as it is in many copies
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

    by_split = {
        name: Section(name=name, title=title, says=says, groups=tuple(make(split, subject) for split in subject.splits))
        for name, title, says, make in _BY_SPLIT
    }
    sections = (
        overview_section(subject),
        *(by_split[name] for name in ("lengths", "padding", "tokens", "ends", "rows")),
        labels_section(subject),
        _shown_section(subject),
        by_split["shards"],
        facts_section(subject),
    )
    lengths = ", ".join(f"{length:,}" for length in manifest.bucket_lengths or (manifest.row_length,))
    return render(
        title=f"Report of the dataset {manifest.name}",
        says=f"Layout {manifest.layout['name']}, rows of {lengths} tokens, tokenizer {manifest.tokenizer.name}, "
        f"fingerprint {manifest.fingerprint[:12]}.",
        sections=tuple(section for section in sections if section is not None),
    )


def check_output(path: str) -> None:
    """Check before any work that `path` is no folder. Raises: ConfigError."""
    local = storage.local_path(path)
    if path.endswith("/") or (local is not None and os.path.isdir(local)):
        raise ConfigError(
            f"--output {path}: a folder, expected a file", remedy=f"give --output {storage.join(path, 'report.html')}"
        )


def _rejected(root: str, name: str, split: Split) -> Iterator[RejectedContent]:
    """Yield examples of rejected rows, at most `_REJECTED` for each reason, from the first lists that have any."""
    wanted = dict.fromkeys(split.ledger.unusable, _REJECTED)
    for task, shards in split.by_task().items():
        if not any(wanted.get(reason) for reason in shards[0].ledger.unusable):
            continue
        try:
            for row in rejected_rows.read(storage.join(root, rejected_path(name, task))):
                if wanted.get(row.reason):
                    wanted[row.reason] -= 1
                    more = " …" if len(row.content) > _REJECTED_CHARACTERS else ""
                    yield dataclasses.replace(row, content=row.content[:_REJECTED_CHARACTERS] + more)
                if not any(wanted.values()):
                    return
        except FileNotFoundError:  # `verify` reports it
            continue


def _shown_section(subject: Subject) -> Section:
    chosen = [_chosen_rows(split) for split in subject.splits]
    most = min(_MOST_TOKENS, _MOST_TOKENS_IN_ALL // max(sum(map(len, chosen)), 1))
    groups = tuple(
        Group(title=split.name, rows=tuple(_row(part, index, subject, most=most) for part, index in rows))
        for split, rows in zip(subject.splits, chosen, strict=True)
    )
    note = "tag" if subject.manifest.schema.with_role("token_labels") is not None else "number"
    tokens = [token for group in groups for row in group.rows for _, tokens in row.parts for token in tokens]
    used = {kind for token in tokens for kind in (*token.kinds, *[note] * bool(token.note))}
    return Section(
        name="samples",
        title="Sample rows",
        says="Tokens as the vocabulary writes them: ## continues a word; Ġ or ▁ stands for a space.",
        groups=groups,
        legend=tuple((kind, text) for kind, text in _LEGEND.items() if kind in used),
    )


def _chosen_rows(split: SplitSubject) -> list[tuple[SampledRecords, int]]:
    """Return part and index of a few rows, spread over the sample; only rows with an answer, if there are any."""
    each = max(1, _ROWS // max(len(split.parts), 1))
    chosen = []
    for part in split.parts:
        among = np.arange(len(part.places))
        last = part.manifest.schema.values(part.columns, "end_position")
        if last is not None and (last > 0).any():
            among = np.flatnonzero(last > 0)
        at = np.linspace(0, len(among) - 1, min(each, len(among))).astype(np.int64)
        chosen += [(part, index) for index in among[at].tolist()]
    return chosen[: 2 * _ROWS]


def _row(part: SampledRecords, index: int, subject: Subject, *, most: int) -> ShownRow:
    """Return one row with at most `most` tokens, half of them for the target if there is one."""
    row = {name: values[index] for name, values in part.columns.items()}
    target = target_marks(row, part.manifest)
    most = most if target is None else most // 2
    shown = [("input", _tokens(input_marks(row, part.manifest), subject, most=most))]
    if target is not None:
        shown.append(("target", _tokens(target, subject, most=most)))
    # Repeat as text what the colours show.
    pieces = pieces_of(input_marks(row, part.manifest), subject.tokenizer)
    learned = " … ".join(piece.text for piece in pieces if piece.learned)
    answer = "".join(piece.text for piece in pieces if piece.answer).strip()
    texts = [(name, text) for name, text in (("to be learned", learned), ("answer", answer)) if text]
    for feature in part.manifest.schema.features:
        if ROLES[feature.role].shown_as == "value":
            value, names = json_value(row[feature.name]), part.manifest.label_names
            if feature.role == "label" and names is not None and feature.dtype == "int64":
                value = [*itertools.compress(names, value)] if feature.shape else names[value]
            texts.append((feature.name, value if isinstance(value, str) else json.dumps(value)))
    features = [(name, text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} …") for name, text in texts]
    return ShownRow(place=part.places[index], parts=tuple(shown), features=tuple(features))


def _tokens(marks: TokenMarks, subject: Subject, *, most: int) -> tuple[ShownToken, ...]:
    """Return the tokens to show, in order; a run of padding, or tokens beyond `most`, become one entry."""
    shown: list[ShownToken] = []
    for is_padding, group in itertools.groupby(range(len(marks.ids)), key=marks.padding.__getitem__):
        run = list(group)
        if is_padding:
            shown.append(ShownToken(text=f"{len(run):,} × padding", kinds=("padding",)))
            continue
        shown += [_token(marks, at, subject) for at in run[:most]]
        if len(run) > most:
            shown.append(ShownToken(text=f"… {len(run) - most:,} more tokens", kinds=("more",)))
        most = max(most - len(run), 0)
    return tuple(shown)


def _token(marks: TokenMarks, at: int, subject: Subject) -> ShownToken:
    kinds = []
    if marks.special[at]:
        kinds.append("special")
    if marks.learned is not None:
        kinds.append("learned" if marks.learned[at] else "not-learned")
    if marks.answer is not None and marks.answer[at]:
        kinds.append("answer")
    if marks.segments is not None:
        kinds.append("segment-odd" if marks.segments[at] % 2 else "segment-even")
    note = ""
    if marks.segments is not None and (at == 0 or marks.segments[at] != marks.segments[at - 1]):
        note = str(marks.segments[at])
    if marks.tags is not None and marks.tags[at] >= 0:
        names = subject.manifest.label_names
        note = str(marks.tags[at]) if names is None else names[int(marks.tags[at])]
    return ShownToken(text=subject.token(int(marks.ids[at])), kinds=tuple(kinds), note=note)
