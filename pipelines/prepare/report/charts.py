"""Sections of the report with charts: row lengths, labels, and shard sizes."""

import math

import numpy as np

from pipelines.prepare.plan.length_histogram import count_lengths
from pipelines.prepare.report.page import Chart, Group, Section, Table
from pipelines.prepare.report.subject import SampledRecords, SplitSubject, Subject, count, lengths_of, share
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Role

_MOST_BARS = 60
_LISTED_LABELS = 40
# Most names below bars, and most characters of each: a phone has room for no more.
_TICKS, _TICK = 5, 10
# A label more than this many times as frequent as the rarest one is worth a warning.
_UNEVEN = 10
# Most characters of a label's name.
_NAME = 100
# Largest width of a bar, as a share of the chart's.
_WIDEST = 0.2


def _edges(bars: int) -> tuple[float, ...]:
    """Return the edges of `bars` equally wide bars, as shares of the chart's width; a few bars stay slim."""
    width = min(1 / bars, _WIDEST)
    return tuple(index * width for index in range(bars + 1))


def lengths_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a split's histogram of lengths."""
    manifest = subject.manifest
    lengths, noun, note = _known_lengths(split, manifest)
    if not len(lengths):
        return Group(title=split.name, texts=(note,))
    found = count_lengths(
        lengths,
        row_lengths=manifest.bucket_lengths or (manifest.row_length,),
        cuts=bool(manifest.layout.get("one_record")),
    )
    end, total, title = found.edges[-1], found.num_rows, f"{noun.capitalize()} by tokens"
    # The share that fits is meaningful only for lengths before any cut.
    is_whole = not split.finished.ledger.tokens_cut
    fitting = f"; {share(total - found.longer, total)} fit into {found.cut:,}" if is_whole else ""
    median = int(np.percentile(lengths, 50, method="higher"))
    names = [f"{length:,}" for length in found.row_lengths]
    names[-1] += " (cut)" if found.cuts else " (row)"
    # About four round numbers below the axis.
    step = 10.0 ** math.floor(math.log10(end / 4))
    step *= next((factor for factor in (1, 2, 5) if end / (step * factor) <= 4), 10)
    ticks = [index * step for index in range(int(end / step) + 1)]
    rows = tuple((found.name(at), count(rows), share(rows, total)) for at, rows in enumerate(found.counts))
    chart = Chart(
        title=title,
        says=f"Half of {count(total)} {noun} have at most {median:,} tokens, the longest has "
        f"{found.longest:,}{fitting}.",
        heights=found.counts,
        edges=tuple(edge / end for edge in found.edges),
        values=Table(caption=title, head=("tokens", noun, "share"), rows=rows, numbers=2, folded=True),
        ticks=tuple((tick / end, f"{tick:,.0f}{'+' if found.beyond and tick == end else ''}") for tick in ticks),
        marks=tuple((at / end, name) for at, name in zip(found.row_lengths, names, strict=True) if at <= end),
        highest=share(max(found.counts), total),
    )
    return Group(title=split.name, texts=(note,), charts=(chart,))


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
    """Chart class ids, the most frequent first. With `names`, include absent classes and omit -1 (no label)."""
    if names is not None:
        ids = ids[ids >= 0]
    found, occurrences = np.unique(ids, return_counts=True)
    by_id = dict.fromkeys(range(len(names or ())), 0) | dict(zip(found.tolist(), occurrences.tolist(), strict=True))
    order = sorted(by_id, key=lambda each: (-by_id[each], each))
    labels = [str(each) if names is None else names[each][:_NAME] for each in order]
    counts = [by_id[each] for each in order]
    shown, total, title = counts[:_LISTED_LABELS], len(ids), f"{noun.capitalize()} by label"
    edges, listed = _edges(len(shown)), list(zip(labels, counts, strict=True))[: 5 * _LISTED_LABELS]
    rows = tuple((label, count(number), share(number, total)) for label, number in listed)
    named = labels[: len(shown)] if len(shown) <= _TICKS else []
    chart = Chart(
        title=title,
        says=f"The most frequent label has {share(counts[0], total)}, the rarest {share(counts[-1], total)}, "
        f"{split.source_of_figures}.",
        heights=tuple(shown),
        edges=edges,
        values=Table(caption=title, head=("label", noun, "share"), rows=rows, numbers=2, folded=len(labels) > 12),
        ticks=tuple((edges[at] + edges[1] / 2, label[:_TICK]) for at, label in enumerate(named)),
        highest=share(counts[0], total),
    )
    uneven = counts[0] > _UNEVEN * max(counts[-1], 1)
    warnings = (f"Some labels are more than {_UNEVEN} times as frequent as others.",) if uneven else ()
    return Group(title=split.name, charts=(chart,), warnings=warnings)
