"""Estimate a build from a sample: shards, bytes, tokens, row lengths, and the waste of other layouts."""

import collections
import dataclasses
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.prepare import runners
from pipelines.prepare.launch import row_names
from pipelines.prepare.launch.open_job import OpenJob, open_job, open_request
from pipelines.prepare.launch.split_plans import find_unused, hub_requests, plan_splits
from pipelines.prepare.layouts.packing import pack
from pipelines.prepare.options.bucket_lengths import choose, length_index
from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.options.source_config import SAMPLES
from pipelines.prepare.options.suggestions import may_join
from pipelines.prepare.plan.planning import SplitPlan
from pipelines.prepare.plan.sampling import Sample
from pipelines.prepare.process.progress import Progress
from tfrecord_io.manifest import HELD_OUT, NOT_HELD_OUT, is_filtered

_PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
_LONGEST = 8192
# Number of row lengths in the estimate of `pad` with --bucket-lengths.
_BUCKETS = 4
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of storing a split's rows in one layout, in `records` records of at most `length` tokens.

    `padding`: padding tokens as a fraction of all tokens in records. `tokens_cut`: fraction of the rows' tokens that
    truncation removes. `rows_cut`: fraction of rows that lose tokens. `lengths`: the record lengths, if several.
    """

    layout: str
    length: int
    records: int
    padding: float
    tokens_cut: float
    rows_cut: float
    lengths: tuple[int, ...] = ()

    @property
    def waste(self) -> float:
        """Padding tokens plus tokens cut off, divided by the tokens in the rows."""
        kept = 1 - self.tokens_cut
        return kept / max(1 - self.padding, 1e-9) - kept + self.tokens_cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of one split of the output, from a sample of its `rows` source rows.

    Token counts include special tokens. `rows_rejected` is a lower bound unless the whole split was read. `filtered`:
    filtered rows by reason. `rows_in_other_splits`: rows that --hold-out puts into other splits. `num_bytes`: size of
    all shards. `seconds`: time to tokenize on this machine, without start-up. `token_percentiles`: tokens per row, by
    percentile. `side_percentiles`: the same for each answer of preference pairs, including the prompt. `chats`: format
    of the conversations, or ''. `row`: unit of a text file that becomes a row, or ''. `requests`: maximum number of
    requests to the Hub. `fim`: rows by kind of fill-in-the-middle.
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
    functions: tuple[str, ...] = ()
    chats: str = ""
    row: str = ""
    engine: str = ""
    requests: int = 0
    fim: Mapping[str, int] = dataclasses.field(default_factory=dict)
    filtered: dict[str, int] = dataclasses.field(default_factory=dict)
    side_percentiles: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        costs = [{**dataclasses.asdict(cost), "waste": cost.waste} for cost in self.layouts]
        return {**dataclasses.asdict(self), "layouts": costs}


def estimate(config: PrepareConfig) -> list[Estimate]:
    """Estimate every split that `build` would make."""
    request = open_request(config)
    with tempfile.TemporaryDirectory(prefix="prep-tfrecords-") as folder:
        here = dataclasses.replace(request.config, output=dataclasses.replace(config.output, root=folder), beam_args=())
        opened = open_job(dataclasses.replace(request, config=here), runner=runners.local(), progress=Progress())
        with row_names.by_file(opened):
            planned = plan_splits(opened, opened.job.splits)
        return [_of_split(plan, sample, opened) for plan, sample in planned.values()]


def _of_split(plan: SplitPlan, sample: Sample, opened: OpenJob) -> Estimate:
    config, spec, split = opened.config, opened.job.spec, opened.job.splits[plan.split]
    rows = split.num_rows
    # Scale by record bytes, since records may hold little of a long text.
    scale = plan.predicted_bytes / max(sample.output_bytes, 1e-9)
    sampled = collections.Counter(filter(is_filtered, sample.read.reasons.tolist()))
    filtered = {reason: round(rows * count / len(sample.read.reasons)) for reason, count in sorted(sampled.items())}
    in_other_splits = sum(filtered.pop(reason, 0) for reason in (HELD_OUT, NOT_HELD_OUT))
    rejected = sum(find_unused(spec.columns, split, sample.read).rejected.values())
    usable = rows - sum(filtered.values()) - in_other_splits - rejected
    by = config.source.sample_by or "line"
    other_units = " or ".join(unit for unit in SAMPLES if unit != by)
    layouts: tuple[Cost, ...] = ()
    inputs = opened.request.inputs
    if not (inputs.nested or inputs.finder):
        limit = max(512, min(int(opened.request.tokenizer.model_max_length), _LONGEST))
        layouts = compare(
            sample.row_tokens,
            rows=usable,
            length=spec.length,
            longest=max(limit, spec.length),
            joined=may_join(config.fingerprint_options()),
            most=config.layout.most_documents,
        )
    return Estimate(
        split=plan.split,
        rows=rows,
        rows_rejected=rejected,
        rows_filtered=sum(filtered.values()),
        rows_in_other_splits=in_other_splits,
        filtered=filtered,
        shards=plan.num_shards * len(sample.length_shares),
        num_bytes=plan.predicted_bytes,
        num_tokens=round(sample.num_tokens * scale),
        seconds=sample.seconds * scale,
        token_percentiles=_percentiles(sample.row_tokens),
        side_percentiles={side: _percentiles(tokens) for side, tokens in sample.side_tokens.items()},
        layouts=layouts,
        functions=tuple(f"--{function.kind} {function.spec}" for function in config.source.functions),
        chats=spec.columns.chats,
        row=f"a {by} of a file (change with --sample-by {other_units})" if opened.identity["kind"] == "text" else "",
        engine=opened.encoder.engine,
        fim=sample.fim,
        requests=hub_requests(split.groups, plan),
    )


def _percentiles(row_tokens: np.ndarray) -> dict[int, int]:
    values = np.percentile(row_tokens, _PERCENTILES)
    return dict(zip(_PERCENTILES, np.rint(values).astype(int).tolist(), strict=True))


def compare(
    row_tokens: np.ndarray, *, rows: int, length: int, longest: int, joined: bool, most: int | None = None
) -> tuple[Cost, ...]:
    """Return the costs of the layout `pad`, of `pad` with --bucket-lengths, and, if `joined`, of `concat` and `pack`.

    `row_tokens` int64 [N]: lengths of sampled rows before truncation. `rows`: rows in the split. `pad` is tried with
    `length` and with each power of two from 64 to `longest`. `joined`: whether a record may hold parts of several rows.
    `most`: maximum number of documents in a record of `pack`; None for no limit.
    """
    total = int(row_tokens.sum())
    if not total:
        return ()

    def cost(layout: str, length: int, *, records: int, positions: int, kept: int = total) -> Cost:
        return Cost(
            layout=layout,
            length=length,
            records=max(1, round(records * rows / len(row_tokens))),
            padding=1 - kept / positions,
            tokens_cut=1 - kept / total,
            rows_cut=float((row_tokens > length).mean()) if kept < total else 0.0,
        )

    def padded(name: str, lengths: tuple[int, ...]) -> Cost:
        positions = int(np.array(lengths)[length_index(lengths, row_tokens)].sum())
        kept = int(np.minimum(row_tokens, lengths[-1]).sum())
        return cost(name, lengths[-1], records=len(row_tokens), positions=positions, kept=kept)

    lengths = choose(row_tokens, count=_BUCKETS, longest=length, fixed=False)
    buckets = padded(f"pad to {','.join(map(str, lengths))}", lengths)
    padding = (
        *(padded("pad", (single,)) for single in sorted({length, *(usual for usual in _LENGTHS if usual <= longest)})),
        dataclasses.replace(buckets, lengths=lengths if len(lengths) > 1 else ()),
    )
    if not joined:
        return padding
    packed = len(pack(row_tokens, length=length, most=most))
    # Only the last record of a shard is padded, which a sample cannot show.
    joining = cost("concat", length, records=-(-total // length), positions=total)
    return *padding, joining, cost("pack", length, records=packed, positions=packed * length)
