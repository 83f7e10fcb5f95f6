"""Sections of the report with bars: row lengths and labels."""

import numpy as np

from pipelines.prepare.report.page import Group, Section, Table
from pipelines.prepare.report.subject import SampledRecords, SplitSubject, Subject, count, lengths_of, share
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role

_MOST_BINS, _MOST_LABELS = 16, 200
# A label more than this many times as frequent as the rarest one is worth a warning.
_UNEVEN = 10
# Most characters of a label's name.
_NAME = 100


def lengths_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a split's rows by length, in bins whose width is a power of two, as row lengths mostly are."""
    lengths, noun, note = _known_lengths(split, subject.manifest)
    if not len(lengths):
        return Group(title=split.name, texts=(note,))
    longest, median = int(lengths.max()), int(np.percentile(lengths, 50, method="higher"))
    width = max(2, 1 << (-(-longest // _MOST_BINS) - 1).bit_length())
    counts = np.bincount(np.maximum(lengths - 1, 0) // width).tolist()
    names = [f"{first + 1:,}-{first + width:,}" for first in range(0, len(counts) * width, width)]
    text = f"Half of {count(len(lengths))} {noun} have at most {median:,} tokens, the longest has {longest:,}."
    table = _with_bars(f"{noun.capitalize()} by tokens", ("tokens", noun), names, counts)
    return Group(title=split.name, texts=(note, text), tables=(table,))


def _with_bars(caption: str, head: tuple[str, str], names: list[str], counts: list[int]) -> Table:
    rows = tuple((name, count(each), share(each, sum(counts))) for name, each in zip(names, counts, strict=True))
    shown = slice(_MOST_LABELS)
    return Table(caption=caption, head=(*head, "share"), rows=rows[shown], numbers=2, bars=tuple(counts[shown]))


def _known_lengths(split: SplitSubject, manifest: Manifest) -> tuple[np.ndarray, str, str]:
    """Return lengths int64 [N], the noun to go with them (rows or documents), and a note on their source."""
    found = lengths_of(split.parts)
    cut = (
        "None was cut."
        if not split.finished.ledger.tokens_cut
        else f"Those of {manifest.row_length:,} tokens may have been cut."
    )
    if manifest.layout["name"] == "pack":
        cut = "Longer ones are divided, or were rejected."
    if manifest.schema.with_role("segment_ids") is not None:
        return found, "documents", f"Documents in the rows, {split.source_of_figures}. {cut}"
    if manifest.schema.with_role("attention_mask") is not None:
        return found, "rows", f"Tokens of a record, {split.source_of_figures}. {cut}"
    text = f"This layout joins documents and fills every row with {manifest.row_length:,} tokens, so lengths of "
    return np.zeros(0, np.int64), "rows", text + "documents are not stored. `plan` with build's arguments shows them."


def labels_section(subject: Subject) -> Section | None:
    """Return the section with the frequency of each label or tag; None for a dataset without labels."""
    schema = subject.manifest.schema
    role: Role = "label" if schema.with_role("label") is not None else "token_labels"
    if (feature := schema.with_role(role)) is None:
        return None
    noun = "rows" if role == "label" else "tokens"
    groups = []
    for split in subject.splits:
        values = np.concatenate([np.zeros(0), *(_labels(part, role) for part in split.parts)])
        text = "No sampled record has a label."
        if len(values) and feature.dtype != "float32":
            groups.append(_classes_group(split, values.astype(np.int64), subject.manifest.label_names, noun=noun))
            continue
        if len(values):
            text = f"Numbers from {values.min():.4g} to {values.max():.4g}, {values.mean():.4g} in the mean, "
            text += f"{split.source_of_figures}."
        groups.append(Group(title=split.name, texts=(text,)))
    says = f"How many {noun} have each label. A model learns little about a label that is rare."
    return Section(name="labels", title="Labels", says=says, groups=tuple(groups))


def _labels(part: SampledRecords, role: Role) -> np.ndarray:
    """Return all labels as float64 [K]: one for each row, each class of multi-label rows, or the tags of tokens."""
    columns, schema = part.columns, part.manifest.schema
    values = schema.values(columns, role)
    assert values is not None, "the schema has them"
    if part.manifest.multi_hot_size:
        return np.nonzero(values)[1].astype(np.float64)
    mask = schema.values(columns, "token_label_mask") if role == "token_labels" else None
    return np.asarray(values.ravel() if mask is None else values[mask > 0], np.float64)


def _classes_group(split: SplitSubject, ids: np.ndarray, names: tuple[str, ...] | None, *, noun: str) -> Group:
    """Count class ids, the most frequent first. With `names`, include absent classes and omit -1 (no label)."""
    if names is not None:
        ids = ids[ids >= 0]
    found, occurrences = np.unique(ids, return_counts=True)
    by_id = dict.fromkeys(range(len(names or ())), 0) | dict(zip(found.tolist(), occurrences.tolist(), strict=True))
    order = sorted(by_id, key=lambda each: (-by_id[each], each))
    labels = [str(each) if names is None else names[each][:_NAME] for each in order]
    counts, total = [by_id[each] for each in order], len(ids)
    text = f"The most frequent label has {share(counts[0], total)}, the rarest {share(counts[-1], total)}, "
    text += f"{split.source_of_figures}."
    table = _with_bars(f"{noun.capitalize()} by label", ("label", noun), labels, counts)
    uneven = counts[0] > _UNEVEN * max(counts[-1], 1)
    warnings = (f"Some labels are more than {_UNEVEN} times as frequent as others.",) if uneven else ()
    return Group(title=split.name, texts=(text,), tables=(table,), warnings=warnings)
