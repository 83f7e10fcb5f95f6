"""Plan the splits of a job: sample rows, count unusable ones, cut blocks, and distribute the blocks over shards.

A block is a run of neighbouring rows if the sample has all rows, and otherwise a part of a row group.
"""

import collections
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from pipelines import stages
from pipelines.prepare.launch.open_job import OpenJob
from pipelines.prepare.options.suggestions import about_fim, against_padding
from pipelines.prepare.plan import planning
from pipelines.prepare.plan.sample_rows import ReadRows
from pipelines.prepare.plan.sampling import Sample, measure
from pipelines.prepare.sources.columns.extraction import ColumnPlan
from pipelines.prepare.sources.parquet.groups import Cover, Groups, cover, covers
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.unused_rows import NAMED_ROWS, RejectedRow, UnusedRows, split_reasons
from tfrecord_io import manifest
from tfrecord_io.errors import ConfigError
from tfrecord_io.schema import UNLABELLED
from tfrecord_io.shown import duration, some

_MOST_PADDING = 0.9
# Limit of the Hub per IP address in five minutes without a token: https://huggingface.co/docs/hub/rate-limits.
_HUB_REQUESTS = 3_000

_log = logging.getLogger(__name__)


Planned = tuple[planning.SplitPlan, Sample]


def plan_splits(opened: OpenJob, splits: Iterable[str]) -> dict[str, Planned]:
    """Sample the rows of the named splits, plan their shards, and log warnings. Return plan and sample by split.

    Raises: ConfigError if a manifest cannot list that many shards; the errors of `plan_one`.
    """
    planned = {split: plan_one(opened, split) for split in splits}
    _require_room(opened, planned)
    _warn_of_requests(opened, planned)
    for split, (_, sample) in planned.items():
        if sample.fim.keys() & {"longer_than_row", "unchanged"}:
            num_rows, length = opened.job.splits[split].num_rows, opened.job.spec.length
            _log.warning("%s, by its sample: %s", split, about_fim(sample.fim, rows=num_rows, length=length))
    label = opened.job.spec.columns.label
    samples = {split: sample for split, (_, sample) in planned.items()}
    _warn_of_padding(opened, samples)
    _warn_of_labels(samples, whole_floats=label is not None and label.kind == "float")
    for note in dict.fromkeys(note for sample in samples.values() for note in sample.notes):
        _log.warning("%s", note)
    return planned


def _require_room(opened: OpenJob, planned: Mapping[str, Planned]) -> None:
    former = opened.request.former
    shards = {split.columns.name[0]: len(split.shards) for split in former.splits.values()} if former else {}
    for plan, sample in planned.values():
        name = opened.job.shard_name(plan.tasks()[0], length=max(opened.job.spec.layout.buckets, default=None))
        shards[name] = plan.num_shards * len(sample.length_shares)
    if not manifest.has_room(shards):
        raise ConfigError(
            f"the dataset would have {some(sum(shards.values()), 'shard')} of {opened.config.output.shard_bytes:,} "
            "bytes, more than a manifest.json can list",
            remedy="give a larger --shard-size, such as 1GB",
        )


def _warn_of_requests(opened: OpenJob, planned: Mapping[str, Planned]) -> None:
    requests = num_bytes = 0
    for split, (plan, _) in planned.items():
        groups = opened.job.splits[split].groups
        if split_requests := hub_requests(groups, plan):
            requests += split_requests
            num_bytes += int(groups.stored_bytes.sum())
    if requests > _HUB_REQUESTS:
        _log.warning(
            "reading the rows may take %s: it needs up to %s requests, and the Hub allows %s per IP address "
            "in five minutes; download the %.1f GB first with `hf download --repo-type dataset`",
            duration(requests / _HUB_REQUESTS * 300),
            f"{requests:,}",
            f"{_HUB_REQUESTS:,}",
            num_bytes / 1e9,
        )


def hub_requests(groups: Groups, plan: planning.SplitPlan) -> int:
    """Return the maximum number of requests to the Hub: two per run of rows that a shard takes from a Hub file."""
    if not groups.files[0].path.startswith("hf://"):
        return 0
    return 2 * len(cover(np.cumsum(groups.source_rows), plan.spans_of(0, plan.num_shards)))


def plan_one(opened: OpenJob, split: str) -> Planned:
    """Sample a split's rows, plan its shards. Raises: ConfigError if a record exceeds --shard-size; like `measure`."""
    config, spec, source = opened.config, opened.job.spec, opened.job.splits[split]
    stages.begin(f"sampling {some(source.num_rows, 'row')} of {split}")
    sample = measure(spec, opened.encoder, source)
    if config.output.shard_bytes < sample.record_bytes:
        raise ConfigError(
            f"--shard-size {config.output.shard_bytes:,} bytes, but one record takes about {sample.record_bytes:,.0f} "
            "bytes",
            remedy="give a larger --shard-size; the default is 100MB",
        )
    # If a task makes a file per record length, the largest file has the size of a shard.
    task_bytes = round(config.output.shard_bytes / max(sample.length_shares))
    rows = planning.block_rows(row_bytes=sample.row_bytes, shard_bytes=task_bytes)
    blocks = forecast(spec, source, sample, block_rows=rows)
    plan = planning.plan_split(
        blocks,
        source,
        shard_bytes=task_bytes,
        seed=config.seed,
        shuffle=config.shuffle,
        runs=_runs(opened, source, blocks, shard_bytes=task_bytes),
    )
    return plan, sample


def _runs(opened: OpenJob, source: SplitSource, blocks: planning.Blocks, *, shard_bytes: int) -> np.ndarray | None:
    first, groups = opened.request.source.listing.splits[source.source_split][0], source.groups
    # Runs are used even if remote workers read copies, so that the plan is the same.
    on_hub = opened.identity["kind"] == "hub" or first.path.startswith("hf://")
    if not on_hub or groups.files[0].ingested:
        return None
    return planning.runs_of(
        blocks, groups.file[np.searchsorted(groups.ends, blocks.starts, "right")], shard_bytes=shard_bytes
    )


def forecast(spec: planning.ShardSpec, split: SplitSource, sample: Sample, *, block_rows: int) -> planning.Blocks:
    """Cut a split's rows into blocks of about `block_rows` rows or fewer. Predict their bytes from its `sample`."""
    read = sample.read
    if read.whole:
        predicted = np.where(read.usable, sample.sizes(read.text_bytes, np.arange(len(read.numbers))), 0.0)
        return planning.cut_rows(read.numbers, predicted, rows=block_rows, row_bytes=sample.row_bytes)
    numbers = np.searchsorted(split.groups.ends, read.numbers[read.usable], "right")
    sizes = sample.sizes.of_groups(read.text_bytes[read.usable], numbers)
    texts_of, first = _texts_of_groups(spec, split, sample), 0
    blocks = []
    for covered in covers(split.groups.ends, split.ranges):
        text_bytes, usable = texts_of(covered.groups)
        predicted = covered.counts * usable * sizes(text_bytes, first + covered.ends - covered.counts / 2)
        blocks.append(_cut_groups(covered, predicted, rows=block_rows, row_bytes=sample.row_bytes))
        first += int(covered.counts.sum())
    return planning.Blocks.joined(blocks)


def _texts_of_groups(
    spec: planning.ShardSpec, split: SplitSource, sample: Sample
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return a function from indices of N row groups to text bytes per usable row and shares of usable rows.

    Both are predictions, float64 [N]. The sample gives the ratio of text bytes to the bytes of all columns.
    """
    groups, read = split.groups, sample.read
    nulls = [counts for _, counts in nulls_by_reason(split, spec.columns)]

    def filled_of(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.maximum(groups.num_rows[indices], 1)
        # The nulls of several columns may be in the same rows, so take the column with the most.
        filled = np.maximum(rows - np.max([np.zeros_like(rows), *(counts[indices] for counts in nulls)], axis=0), 0)
        return filled / rows, groups.num_bytes[indices] / np.maximum(filled, 1)

    share, group_bytes = filled_of(np.searchsorted(groups.ends, read.numbers, "right"))
    usable = min(1.0, float(read.usable.sum() / max(share.sum(), 1.0)))
    ratio = read.text_bytes[read.usable].sum() / max(group_bytes[read.usable].sum(), 1.0)

    def texts_of(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share, group_bytes = filled_of(indices)
        return group_bytes * ratio, usable * share

    return texts_of


def nulls_by_reason(split: SplitSource, columns: ColumnPlan) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (reason, counts) for each column where a null means rejection: the ledger's reason, nulls per row group.

    `counts` is int64 [N]. Yields nothing if rows may be filtered, or user functions may replace the nulls.
    """
    required = {feature.name: "column_null" for feature in columns.kept}
    if columns.label:
        required[columns.label.column] = "label_null"
    required |= {name: f"{purpose}_null" for purpose, name in columns.nested.items() if name not in columns.optional}
    required |= dict.fromkeys(columns.texts, "text_null")
    for name, reason in required.items():
        if name in split.groups.nulls and split.reader.is_plain:
            yield reason, split.groups.nulls[name]


def _cut_groups(covered: Cover, predicted: np.ndarray, *, rows: int, row_bytes: float) -> planning.Blocks:
    # A group slightly larger than a block stays whole, since a cut group is decoded twice.
    by_bytes = np.ceil(predicted / max(planning.ROOM * rows * row_bytes, 1.0)).astype(np.int64)
    parts = np.minimum(np.maximum((2 * covered.counts + rows) // (2 * rows), by_bytes), covered.counts)
    if (parts <= 1).all():
        return planning.Blocks(covered.starts, covered.starts + covered.counts, predicted)
    owner = np.repeat(np.arange(len(covered)), parts)
    part = np.arange(len(owner)) - (np.cumsum(parts) - parts)[owner]
    starts, counts, parts = covered.starts[owner], covered.counts[owner], parts[owner]
    low, high = counts * part // parts, counts * (part + 1) // parts
    return planning.Blocks(starts + low, starts + high, predicted[owner] * (high - low) / counts)


def find_unused(columns: ColumnPlan, split: SplitSource, read: ReadRows) -> UnusedRows:
    """Count rejected rows by reason, from the sampled rows `read` and from the null counts in Parquet metadata.

    The counts are lower bounds, and without filtered rows, unless the sample has every row.
    """
    filtered, indices = split_reasons(read.reasons)
    rejected = collections.Counter[str](read.reasons[indices].tolist())
    rejected.update(row.reason for row in read.refused)
    first = [RejectedRow(row=int(read.numbers[at]), reason=str(read.reasons[at])) for at in indices[:NAMED_ROWS]]
    if not read.whole:
        # As in `_texts_of_groups`, take the column with the most nulls. If only part of a group is read, all of its
        # other rows may be null, so count only the nulls in excess of their number.
        known = list(nulls_by_reason(split, columns))
        nulls = np.zeros(len(known), np.int64)
        for covered in covers(split.groups.ends, split.ranges) if known else ():
            outside = split.groups.num_rows[covered.groups] - covered.counts
            nulls += [np.maximum(counts[covered.groups] - outside, 0).sum() for _, counts in known]
        rows, reason = max(zip(nulls.tolist(), (reason for reason, _ in known), strict=True), default=(0, ""))
        if rows > rejected.total():  # not the sum, since both counts may include the same rows
            rejected = collections.Counter({reason: rows})
    return UnusedRows(
        rejected=dict(sorted(rejected.items())),
        filtered=filtered if read.whole else {},
        first=tuple(sorted({*first, *read.refused}, key=lambda row: row.row)[:NAMED_ROWS]),
        exact=read.whole and not read.refused,
    )


def _warn_of_padding(opened: OpenJob, samples: Mapping[str, Sample]) -> None:
    padded = {split: sample for split, sample in samples.items() if sample.padding is not None}
    if not padded:
        return
    rows = [opened.job.splits[split].num_rows for split in padded]
    share = float(np.average(np.array([sample.padding for sample in padded.values()]), weights=rows))
    if share > _MOST_PADDING:
        longest = np.percentile(np.concatenate([sample.row_tokens for sample in padded.values()]), 99)
        _log.warning(
            "%.1f %% of the tokens in records would be padding: records have up to %d tokens, but 99 %% of the sampled "
            "rows have at most %.0f; give %s",
            100 * min(share, 0.999),
            opened.job.spec.length,
            longest,
            against_padding(opened.config.fingerprint_options()),
        )


def _warn_of_labels(samples: Mapping[str, Sample], *, whole_floats: bool) -> None:
    without = [split for split, sample in samples.items() if sample.labels.tolist() == [UNLABELLED]]
    labelled = [sample for split, sample in samples.items() if split not in without and len(sample.labels)]
    if without and not whole_floats:
        _log.warning(
            "split %s: all sampled labels are -1, which is a value like any other; if it means no label, give "
            "--label-classes, or choose splits that have labels with --split",
            ", ".join(without),
        )
    if not labelled:
        return
    labels = np.unique(np.concatenate([sample.labels for sample in labelled]))
    all_seen = all(sample.read.whole for sample in labelled)
    if whole_floats:
        problem = " stored as floats, so they are treated as numbers to predict"
    elif labels[0] != 0 or (all_seen and len(labels) <= labels[-1]):
        no_label = " (-1 means no label)" if labels[0] == UNLABELLED else ""
        problem = f", which is right for numbers to predict, but classes must be 0 to n - 1{no_label}"
    else:
        return
    advice = "give --label-classes to make each number a class"
    _log.warning("labels are whole numbers from %d to %d%s; %s", labels[0], labels[-1], problem, advice)
