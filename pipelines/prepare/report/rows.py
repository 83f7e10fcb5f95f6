"""The section with sample rows: each token with what it is, and the other features as text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.prepare.audit.decode import TokenMarks, input_marks, json_value, pieces_of, target_marks
from pipelines.prepare.report.page import Group, Section, ShownRow, ShownToken
from pipelines.prepare.report.subject import SampledRecords, SplitSubject, Subject
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import OF_TOKENS, Role

_ROWS = 4
# Of a row, and of all rows together: a token takes about 80 bytes of a page that should stay below 2 MB.
_MOST_TOKENS, _MOST_TOKENS_IN_ALL = 384, 12_000
_MOST_CHARACTERS = 200
# Features that the marks of tokens show.
_SHOWN: tuple[Role, ...] = (*OF_TOKENS, "target_ids", "target_mask", "num_tokens", "start_position", "end_position")
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


def shown_section(subject: Subject) -> Section:
    """Return the section with a few rows of each split."""
    chosen = [_chosen_rows(split) for split in subject.splits]
    most = min(_MOST_TOKENS, _MOST_TOKENS_IN_ALL // max(sum(map(len, chosen)), 1))
    groups = tuple(
        Group(title=split.name, rows=tuple(_row(part, index, subject, most=most) for part, index in rows))
        for split, rows in zip(subject.splits, chosen, strict=True)
    )
    note = "tag" if subject.manifest.schema.with_role("token_labels") is not None else "number"
    used = {
        kind
        for group in groups
        for row in group.rows
        for _, tokens in row.parts
        for token in tokens
        for kind in (*token.kinds, *((note,) if token.note else ()))
    }
    return Section(
        name="samples",
        title="Sample rows",
        says="Tokens as the vocabulary writes them: ## continues a word; Ġ or ▁ stands for a space.",
        groups=groups,
        legend=tuple((kind, text) for kind, text in _LEGEND.items() if kind in used),
    )


def _chosen_rows(split: SplitSubject) -> list[tuple[SampledRecords, int]]:
    """Return the part and the index of a few rows from all along the sample, with an answer where there are any."""
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
    """Return one row with at most `most` tokens, half of them of the target where there is one."""
    row = {name: values[index] for name, values in part.columns.items()}
    target = target_marks(row, part.manifest)
    most = most if target is None else most // 2
    shown = [("input", _tokens(input_marks(row, part.manifest), subject, most=most))]
    if target is not None:
        shown.append(("target", _tokens(target, subject, most=most)))
    # As text what colours show, too.
    pieces = pieces_of(input_marks(row, part.manifest), subject.tokenizer)
    learned = " … ".join(piece.text for piece in pieces if piece.learned)
    answer = "".join(piece.text for piece in pieces if piece.answer).strip()
    texts = [(name, text) for name, text in (("to be learned", learned), ("answer", answer)) if text]
    texts += _features(row, part.manifest)
    shortened = [
        (name, text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …") for name, text in texts
    ]
    return ShownRow(place=part.places[index], parts=tuple(shown), features=tuple(shortened))


def _features(row: Mapping[str, np.ndarray], manifest: Manifest) -> Iterator[tuple[str, str]]:
    for feature in manifest.schema.features:
        if feature.role in _SHOWN:
            continue
        value, names = json_value(row[feature.name]), manifest.label_names
        if feature.role == "label" and names is not None and feature.dtype == "int64":
            value = [*itertools.compress(names, value)] if feature.shape else names[value]
        yield feature.name, value if isinstance(value, str) else json.dumps(value)


def _tokens(marks: TokenMarks, subject: Subject, *, most: int) -> tuple[ShownToken, ...]:
    """Return tokens in order; runs of padding, and what is too long to show, as one each."""
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
