"""The sections about lengths: rows by their tokens, with the cut, and what each layout pads and cuts."""

from __future__ import annotations

import numpy as np

from pipelines.prepare.launch.layout_comparison import Cost, compare, least
from pipelines.prepare.plan.length_histogram import LengthHistogram, count_lengths
from pipelines.prepare.report import charts
from pipelines.prepare.report.documents import documents_of
from pipelines.prepare.report.elements import Chart, Group, Table
from pipelines.prepare.report.subject import SplitSubject, Subject, count, share
from tfrecord_io.manifest import Manifest, Shard

__all__ = ["layouts_group", "lengths_group"]

_MOST_PADDING = 0.5
_COMPARED = ("pad", "pack")


def lengths_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a split's histogram of lengths."""
    lengths, noun, note = _known_lengths(split, subject.manifest)
    if not len(lengths):
        return Group(title=split.name, texts=(note,))
    row_lengths = subject.manifest.bucket_lengths or (subject.manifest.row_length,)
    layout = subject.manifest.layout
    cuts = layout["name"] not in ("concat", "pack") and not {"stride", "pack_rows"} & layout.keys()
    is_whole = split.row_tokens is not None or not _cut_tokens(split)
    chart = _length_chart(count_lengths(lengths, row_lengths=row_lengths, cuts=cuts), noun=noun, is_whole=is_whole)
    return Group(title=split.name, texts=(note,), charts=(chart,))


def _known_lengths(split: SplitSubject, manifest: Manifest) -> tuple[np.ndarray, str, str]:
    """Return lengths of rows or documents int64 [N], what they are lengths of, and where they come from."""
    if split.row_tokens is not None:
        text = f"Full lengths of {len(split.row_tokens):,} sampled rows of the source, before any cut."
        return split.row_tokens, "rows", text
    found = documents_of(split.parts).lengths
    cut = "None was cut." if not _cut_tokens(split) else f"Those of {manifest.row_length:,} tokens may have been cut."
    if manifest.layout["name"] == "pack":
        cut = "Longer ones are divided, or were rejected."
    if manifest.schema.with_role("segment_ids") is not None:
        return found, "documents", f"Documents in the rows, {split.source_of_figures}. {cut}"
    if manifest.schema.with_role("attention_mask") is not None:
        return found, "rows", f"Tokens of a record, {split.source_of_figures}. {cut}"
    text = f"This layout joins documents and fills every row with {manifest.row_length:,} tokens, so lengths of "
    return np.zeros(0, np.int64), "rows", text + "documents are not stored. `report` with build's arguments shows them."


def _cut_tokens(split: SplitSubject) -> int:
    return split.finished.ledger.tokens_cut if split.finished is not None else 0


def _length_chart(found: LengthHistogram, *, noun: str, is_whole: bool) -> Chart:
    """`is_whole`: these are the lengths before any cut, so that how many fit means something."""
    end = found.edges[-1]
    fit = found.num_rows - found.longer
    fitting = f"; {share(fit, found.num_rows)} fit into {found.cut:,}" if is_whole else ""
    says = (
        f"Half of {count(found.num_rows)} {noun} have at most {_median(found):,} tokens, the longest has "
        f"{found.longest:,}{fitting}."
    )
    names = [f"{length:,}" for length in found.row_lengths]
    names[-1] += " (cut)" if found.cuts else " (row)"
    shares = [(length / end, name) for length, name in zip(found.row_lengths, names, strict=True) if length <= end]
    ticks = [(tick / end, f"{tick:,.0f}{'+' if found.beyond and tick == end else ''}") for tick in charts.ticks_of(end)]
    title, total = f"{noun.capitalize()} by tokens", max(found.num_rows, 1)
    rows = tuple((found.name(index), count(number), share(number, total)) for index, number in enumerate(found.counts))
    return charts.bars(
        list(map(float, found.counts)),
        title=title,
        says=says,
        values=Table(caption=title, head=("tokens", noun, "share"), rows=rows, numbers=2, folded=True),
        ticks=ticks,
        marks=shares,
        highest=share(max(found.counts), total),
        edges=[edge / end for edge in found.edges],
    )


def _median(found: LengthHistogram) -> int:
    passed = np.cumsum(found.counts)
    return found.edges[int(np.searchsorted(passed, found.num_rows / 2)) + 1]


def layouts_group(split: SplitSubject, subject: Subject) -> Group:
    """Return a split's padding and cut tokens, of this dataset and of other layouts."""
    tables, warnings = [], []
    if split.finished is not None:
        exact, padding = _exact(split, subject.manifest)
        tables.append(exact)
        if padding > _MOST_PADDING:
            warnings.append(
                f"{share(padding)} of the positions are padding: consider --bucket-lengths auto:4, a smaller "
                "--max-length, or --layout pack."
            )
    costs = split.estimate.layouts if split.estimate is not None else _compared(split, subject.manifest)
    if costs:
        tables.append(_cost_table(costs, split))
    elif split.finished is None:
        return Group(title=split.name, texts=_of_sample(split))
    return Group(title=split.name, tables=tuple(tables), warnings=tuple(warnings))


def _of_sample(split: SplitSubject) -> tuple[str, ...]:
    positions = sum(part.num_records * _positions(part.manifest) for part in split.parts)
    tokens = sum(int(part.num_tokens.sum()) for part in split.parts)
    return (f"{share(positions - tokens, positions)} of the positions are padding, {split.source_of_figures}.",)


def _positions(manifest: Manifest) -> int:
    """Return the positions of one record that tokens can be in: of inputs and targets."""
    features = (manifest.schema.with_role(role) for role in ("token_ids", "target_ids"))
    return sum(feature.num_values for feature in features if feature is not None)


def _exact(split: SplitSubject, manifest: Manifest) -> tuple[Table, float]:
    """Return the manifest's figures as a table, one line for each row length, and the share of padding of all."""
    assert split.finished is not None, "only a finished dataset has them"
    lengths = manifest.bucket_lengths
    rows, positions, tokens = [], 0, 0
    for length in lengths or (manifest.row_length,):
        shards = [shard for shard in split.finished.shards if not lengths or shard.length == length]
        described = manifest.bucket(length) if lengths else manifest
        here = sum(shard.num_examples for shard in shards) * _positions(described)
        held = sum(shard.num_tokens for shard in shards)
        positions, tokens = positions + here, tokens + held
        rows.append((f"{length:,}", *_figures(shards), share(here - held, here)))
    cut = split.finished.ledger.tokens_cut
    says = f"{manifest.layout['name']}, this dataset (exact, from its manifest). "
    says += f"{count(cut)} tokens are cut, {share(cut, tokens + cut)} of all."
    head = ("row length", "shards", "records", "tokens", "padding")
    return Table(caption=says, head=head, rows=tuple(rows), numbers=4), (positions - tokens) / max(positions, 1)


def _figures(shards: list[Shard]) -> tuple[str, str, str]:
    return (
        count(len(shards)),
        count(sum(shard.num_examples for shard in shards)),
        count(sum(shard.num_tokens for shard in shards)),
    )


def _compared(split: SplitSubject, manifest: Manifest) -> tuple[Cost, ...]:
    """Compare layouts for the documents of a finished dataset, where each is one text whose length is known."""
    assert split.finished is not None, "a source has an estimate"
    if manifest.layout["name"] not in _COMPARED or "stride" in manifest.layout:
        return ()
    lengths = documents_of(split.parts).lengths
    examples, sampled = split.finished.num_examples, split.num_sampled
    return compare(
        lengths,
        rows=round(len(lengths) * examples / max(sampled, 1)),
        length=manifest.row_length,
        longest=manifest.row_length,
        token_bytes=2.0,
        types=manifest.schema.with_role("token_type_ids") is not None,
        shard_bytes=max(round(split.finished.num_bytes / max(len(split.finished.shards), 1)), 1),
    )


def _cost_table(costs: tuple[Cost, ...], split: SplitSubject) -> Table:
    best = least(costs)
    rows = tuple(
        (
            (f"buckets {', '.join(map(str, cost.lengths))}" if cost.lengths else cost.layout)
            + (" (wastes least)" if cost is best else ""),
            f"{cost.length:,}",
            count(cost.records),
            share(cost.padding),
            share(cost.tokens_cut),
            share(cost.rows_cut),
            share(cost.waste),
        )
        for cost in costs
    )
    where = "of the source" if split.finished is None else "of the dataset; what it has cut already is not counted"
    return Table(
        caption=f"The same rows in other layouts, estimated from sampled rows {where}",
        head=("layout", "row length", "records", "padding", "tokens cut", "rows cut", "waste"),
        rows=rows,
        numbers=6,
    )
