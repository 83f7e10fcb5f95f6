"""Estimating a build from a sample: shards, bytes, tokens, lengths, and the waste of each layout."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
from typing import Any

import numpy as np

from pipelines.prepare.crosscheck.comparing import engine_of
from pipelines.prepare.launch.layout_comparison import Cost, compare
from pipelines.prepare.launch.open_job import OpenJob, open_job
from pipelines.prepare.launch.request import open_request
from pipelines.prepare.launch.split_plans import PlannedSplit, plan_splits
from pipelines.prepare.layouts import layout_of
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.options.source_config import SAMPLES
from pipelines.prepare.plan.length_histogram import LengthHistogram, count_lengths
from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.process.progress import Progress
from tfrecord_io.format.ledger import HELD_OUT, NOT_HELD_OUT, is_left_out

__all__ = ["Estimate", "estimate"]

_PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
_LONGEST = 8192
# Lines of the drawing on a terminal.
_BINS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate for one split.

    Tokens include special tokens. `seconds`: tokenizing on this machine with `engine`, without start-up.
    `rows_in_other_splits` are in another split by --hold-out, `left_out` the `rows_filtered` by reason.
    `steps` are the user functions as on the command line.
    `chats` says which form conversations have, `row` what a row of text files is.
    If the split was not read completely, `rows_rejected` is a lower bound, and rows left out on purpose are projected
    from the sample. `histogram` counts the sampled rows by their lengths.
    """

    split: str
    rows: int
    rows_rejected: int
    rows_filtered: int
    rows_in_other_splits: int
    shards: int
    num_bytes: int
    num_tokens: int
    seconds: float
    token_percentiles: dict[int, int]
    layouts: tuple[Cost, ...]
    steps: tuple[str, ...] = ()
    chats: str = ""
    row: str = ""
    engine: str = ""
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)
    histogram: LengthHistogram | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `plan --json` prints."""
        costs = [{**dataclasses.asdict(cost), "waste": cost.waste} for cost in self.layouts]
        return {**dataclasses.asdict(self), "layouts": costs}


def estimate(config: PrepareConfig) -> list[Estimate]:
    """Estimate every split that `build` would make. Nothing is written."""
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as home:
        opened = open_job(open_request(config), progress=Progress(), home=home)
        return [_of_split(each, opened) for each in plan_splits(opened, opened.job.splits).values()]


def _of_split(planned: PlannedSplit, opened: OpenJob) -> Estimate:
    config, spec = opened.config, opened.job.spec
    sample, rows = planned.sample, opened.job.splits[planned.plan.split].num_rows
    share = planned.text_bytes / max(sample.text_bytes, 1)
    sampled = collections.Counter(filter(is_left_out, sample.read.reasons.tolist()))
    left_out = {reason: round(rows * count / len(sample.read.reasons)) for reason, count in sorted(sampled.items())}
    in_other_splits = sum(left_out.pop(reason, 0) for reason in (HELD_OUT, NOT_HELD_OUT))
    usable = rows - sum(left_out.values()) - in_other_splits - planned.unusable.num_rows
    values = np.percentile(sample.row_tokens, _PERCENTILES)
    return Estimate(
        split=planned.plan.split,
        rows=rows,
        rows_rejected=planned.unusable.num_rows,
        rows_filtered=sum(left_out.values()),
        rows_in_other_splits=in_other_splits,
        left_out=left_out,
        shards=planned.plan.num_shards * len(sample.length_shares),
        num_bytes=planned.plan.predicted_bytes,
        # Scaled by bytes of records rather than of texts, since records may hold little of a long text.
        num_tokens=round(sample.num_tokens * planned.plan.predicted_bytes / max(sample.output_bytes, 1e-9)),
        seconds=sample.seconds * share,
        token_percentiles=dict(zip(_PERCENTILES, np.rint(values).astype(int).tolist(), strict=True)),
        layouts=_compared(sample, opened, rows=usable),
        steps=tuple(f"--{step.kind} {step.spec}" for step in config.source.functions),
        chats=spec.columns.chats,
        row=_row(opened),
        engine=engine_of(opened.encoder),
        histogram=count_lengths(
            sample.row_tokens,
            row_lengths=spec.layout.buckets or (spec.length,),
            bins=_BINS,
            cuts=not layout_of(spec.layout).joins_rows and spec.layout.stride is None,
        ),
    )


def _row(opened: OpenJob) -> str:
    if opened.source.kind != "text":
        return ""
    sample = opened.config.source.sample_by or "line"
    others = " or ".join(each for each in SAMPLES if each != sample)
    return f"a {sample} of a file (--sample-by {others} for others)"


def _compared(sample: Sample, opened: OpenJob, *, rows: int) -> tuple[Cost, ...]:
    """Compare other layouts for plain texts; for rows with more than one text that would mean little."""
    spec, tokenizer = opened.job.spec, opened.request.tokenizer
    if spec.layout.name not in ("pad", "concat", "pack"):
        return ()
    # Lengths beyond the model's limit are useless; 512 is shown even for tokenizers with a lower limit.
    limit = max(512, min(int(tokenizer.model_max_length), _LONGEST))
    return compare(
        sample.row_tokens,
        rows=rows,
        length=spec.length,
        longest=max(limit, spec.length),
    )
