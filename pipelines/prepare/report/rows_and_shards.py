"""The sections about rows and files: sizes of shards, the ledger with rejected rows, and labels."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.report import charts
from pipelines.prepare.report.elements import Group, Section, Table
from pipelines.prepare.report.sampled_records import SampledRecords
from pipelines.prepare.report.subject import SplitSubject, Subject, count, share, size, some
from tfrecord_io.format.ledger import LEFT_OUT
from tfrecord_io.schema import Role

__all__ = ["labels_section", "rows_group", "shards_group"]

_MOST_BARS = 60
_LISTED_SHARDS = 200
_LISTED_LABELS = 40
# Names below bars: on a phone there is room for so many, of so many characters.
_TICKS, _TICK = 5, 10
# Labels that are more than this many times as frequent as others are worth a note.
_UNEVEN = 10
# Characters of a label's name.
_NAME = 100


def shards_group(split: SplitSubject, subject: Subject) -> Group:
    """Return the sizes of a split's shards."""
    if split.finished is None:
        assert split.estimate is not None, "a source has an estimate"
        estimate = split.estimate
        text = f"About {some(estimate.shards, 'shard')} with {size(estimate.num_bytes)} in all would be made."
        return Group(title=split.name, texts=(text,))
    shards = split.finished.shards
    sizes = [shard.num_bytes for shard in shards]
    least, most = min(sizes), max(sizes)
    says = f"{some(len(sizes), 'shard')} with {size(sum(sizes))} in all"
    says += f", from {size(least)} to {size(most)}." if len(sizes) > 1 else "."
    title = "Bytes of each shard"
    bars = sizes
    if len(sizes) > _MOST_BARS:
        # Neighbours share a bar: their mean size.
        bars = [round(float(part.mean())) for part in np.array_split(np.array(sizes), _MOST_BARS)]
        title = "Mean bytes of neighbouring shards"
    edges = charts.bar_edges(len(bars))
    ticks = [(edges[1] / 2, "shard 0"), (edges[-1] - edges[1] / 2, f"{len(sizes) - 1:,}")][: len(sizes)]
    table = Table(
        caption="Shards" if len(shards) <= _LISTED_SHARDS else f"The first {_LISTED_SHARDS} of {len(shards):,} shards",
        head=("shard", "bytes", "records", "tokens"),
        rows=tuple(
            (shard.name, count(shard.num_bytes), count(shard.num_examples), count(shard.num_tokens))
            for shard in shards[:_LISTED_SHARDS]
        ),
        numbers=3,
        folded=True,
    )
    chart = charts.bars(
        list(map(float, bars)), title=title, says=says, values=table, ticks=ticks, highest=size(max(bars))
    )
    return Group(title=split.name, charts=(chart,))


def rows_group(split: SplitSubject, subject: Subject) -> Group:
    """Return what became of every row of a split, and examples of rejected ones."""
    if split.finished is not None:
        ledger = split.finished.ledger
        total, rejected = ledger.rows_in, dict(ledger.rejected)
        rows = [("used", count(ledger.rows_used), share(ledger.rows_used, total))]
        caption = "Rows in, from the manifest"
    else:
        assert split.estimate is not None, "a source has an estimate"
        estimate = split.estimate
        total, rejected = estimate.rows, {}
        left = {"filtered": estimate.rows_filtered, "in other splits": estimate.rows_in_other_splits}
        left["rejected (at least)"] = estimate.rows_rejected
        rows = [(name, count(number), share(number, total)) for name, number in left.items() if number]
        caption = "Rows of the source, from its files and a sample"
    for reason, number in sorted(rejected.items(), key=lambda item: (-item[1], item[0])):
        kind = "left out" if reason in LEFT_OUT else "rejected"
        rows.append((f"{kind}: {reason}", count(number), share(number, total)))
    rows.append(("in all", count(total), share(1)))
    tables = [Table(caption=caption, head=("rows", "number", "share"), rows=tuple(rows), numbers=2)]
    if split.rejected:
        tables.append(
            Table(
                caption="Examples of rejected rows",
                head=("reason", "row of the split", "content"),
                rows=tuple(
                    (row.reason + (f": {row.detail}" if row.detail else ""), count(row.row), row.content)
                    for row in split.rejected
                ),
            )
        )
    return Group(title=split.name, tables=tuple(tables))


def labels_section(subject: Subject) -> Section | None:
    """Return the section with how often each label or tag occurs; None without labels."""
    schema = subject.manifest.schema
    role: Role = "label" if schema.with_role("label") is not None else "token_labels"
    feature = schema.with_role(role)
    if feature is None:
        return None
    noun = "rows" if role == "label" else "tokens"
    groups = tuple(_labels_group(split, subject, role=role, noun=noun) for split in subject.splits)
    says = f"How many {noun} have each label. A model learns little about a label that is rare."
    return Section(name="labels", title="Labels", says=says, groups=groups)


def _labels_group(split: SplitSubject, subject: Subject, *, role: Role, noun: str) -> Group:
    values = [_labels(part, role) for part in split.parts]
    every = np.concatenate([np.zeros(0), *values])
    if not len(every):
        return Group(title=split.name, texts=("No sampled record has a label.",))
    names = subject.manifest.label_names
    feature = subject.manifest.schema.with_role(role)
    if feature is not None and feature.dtype == "float32":
        return _numbers_group(split, every)
    shown_names, counts = _counted(every.astype(np.int64), names)
    total = len(every)
    says = f"{_uppermost(shown_names, counts, total)}, {split.source_of_figures}."
    warnings: tuple[str, ...] = ()
    if counts[0] > _UNEVEN * max(counts[-1], 1):
        warnings = (f"Some labels are more than {_UNEVEN} times as frequent as others.",)
    title = f"{noun.capitalize()} by label"
    shown = counts[:_LISTED_LABELS]
    edges = charts.bar_edges(len(shown))
    ticks = [(edges[at] + edges[1] / 2, shown_names[at][:_TICK]) for at in range(len(shown))]
    table = Table(
        caption=title,
        head=("label", noun, "share"),
        rows=tuple(
            (name, count(number), share(number, total)) for name, number in zip(shown_names, counts, strict=True)
        )[: 5 * _LISTED_LABELS],
        numbers=2,
        folded=len(shown_names) > 12,
    )
    chart = charts.bars(
        list(map(float, shown)),
        title=title,
        says=says,
        values=table,
        ticks=ticks if len(shown) <= _TICKS else (),
        highest=share(counts[0], total),
    )
    return Group(title=split.name, charts=(chart,), warnings=warnings)


def _uppermost(names: list[str], counts: list[int], total: int) -> str:
    """Say which label is the most frequent, or that several are; `counts` are falling."""
    equals = counts.count(counts[0])
    if equals == 1:
        return f"{names[0]} is the most frequent, with {share(counts[0], total)}"
    if equals < len(counts):
        return f"{equals} labels are the most frequent, with {share(counts[0], total)} each"
    return f"All {equals} labels are equally frequent, with {share(counts[0], total)} each"


def _labels(part: SampledRecords, role: Role) -> np.ndarray:
    """Return the labels of rows, each of several classes a row, or those of the tokens that have one, float64."""
    columns, schema = part.columns, part.manifest.schema
    values = schema.values(columns, role)
    assert values is not None, "the schema has them"
    if part.manifest.multi_hot_size:
        return np.nonzero(values)[1].astype(np.float64)
    mask = schema.values(columns, "token_label_mask") if role == "token_labels" else None
    return np.asarray(values.ravel() if mask is None else values[mask > 0], np.float64)


def _counted(values: np.ndarray, names: tuple[str, ...] | None) -> tuple[list[str], list[int]]:
    """Count class ids, most frequent first; with names those that do not occur too."""
    ids, counts = np.unique(values, return_counts=True)
    by_id = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    if names is not None:
        by_id = {index: by_id.get(index, 0) for index in range(len(names))}
    order = sorted(by_id, key=lambda each: (-by_id[each], each))
    return [str(each) if names is None else names[each][:_NAME] for each in order], [by_id[each] for each in order]


def _numbers_group(split: SplitSubject, values: np.ndarray) -> Group:
    """Show labels that are numbers as a histogram."""
    low, high = float(values.min()), float(values.max())
    counts, edges = np.histogram(values, bins=20, range=(low, high if high > low else low + 1))
    title = "Rows by label"
    says = f"Numbers from {low:.4g} to {high:.4g}, {values.mean():.4g} in the mean, {split.source_of_figures}."
    table = Table(
        caption=title,
        head=("from", "to", "rows"),
        rows=tuple((f"{edges[i]:.4g}", f"{edges[i + 1]:.4g}", count(counts[i])) for i in range(len(counts))),
        numbers=3,
        folded=True,
    )
    chart = charts.bars(
        [float(number) for number in counts],
        title=title,
        says=says,
        values=table,
        ticks=[(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")],
        highest=count(counts.max()),
    )
    return Group(title=split.name, charts=(chart,))
