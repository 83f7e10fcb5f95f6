"""What would come out, from a sample: shards, bytes, tokens, lengths, and what each row length would cost in padding
or cuts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pipelines.prepare.build import Planned, plan_one
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.job import resolve

__all__ = ["Estimate", "LengthCost", "estimate", "length_costs"]

_PERCENTILES = (5, 25, 50, 75, 95, 99, 100)
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthCost:
    """One row length: the share of positions that are padding, of tokens that are cut, and of rows that lose some."""

    length: int
    padding: float
    tokens_cut: float
    rows_cut: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """One split. Tokens count special tokens; `seconds` is for this machine, tokenizing alone, without start-up."""

    split: str
    rows: int
    rows_rejected: int
    shards: int
    num_bytes: int
    num_tokens: int
    seconds: float
    token_percentiles: dict[int, int]
    lengths: tuple[LengthCost, ...]

    def to_json(self) -> dict[str, Any]:
        """As `plan --json` prints it."""
        return dataclasses.asdict(self)


def estimate(config: PrepareConfig) -> list[Estimate]:
    """Estimates every split that `build` would make. Nothing is written."""
    resolved = resolve(config)
    limit = _longest(resolved.tokenizer.model_max_length)
    return [
        _of_split(plan_one(resolved, split, config), rows=source.num_rows, longest=max(limit, resolved.job.length))
        for split, source in resolved.job.splits.items()
    ]


def length_costs(row_tokens: np.ndarray, *, longest: int) -> tuple[LengthCost, ...]:
    """For each usual length up to `longest`, what `pad` would waste; `row_tokens` int64 [N] are the rows' full
    lengths.
    """
    costs = []
    total = int(row_tokens.sum())
    for length in (length for length in _LENGTHS if length <= max(longest, _LENGTHS[0])):
        kept = np.minimum(row_tokens, length)
        costs.append(
            LengthCost(
                length=length,
                padding=float(1 - kept.sum() / (length * len(row_tokens))),
                tokens_cut=float((total - kept.sum()) / max(total, 1)),
                rows_cut=float((row_tokens > length).mean()),
            )
        )
    return tuple(costs)


def _longest(model_max_length: int) -> int:
    # Beyond the model's limit a length is of no use; 512 is shown even for tokenizers that state less.
    return max(512, min(int(model_max_length), _LENGTHS[-1]))


def _of_split(planned: Planned, *, rows: int, longest: int) -> Estimate:
    sample, scan = planned.sample, planned.scan
    share = scan.text_bytes / max(sample.text_bytes, 1)
    values = np.percentile(sample.row_tokens, _PERCENTILES)
    return Estimate(
        split=planned.plan.split,
        rows=rows,
        rows_rejected=sum(scan.rejected.values()),
        shards=len(planned.plan.shards),
        num_bytes=planned.plan.predicted_bytes,
        num_tokens=round(sample.num_tokens * share),
        seconds=sample.seconds * share,
        token_percentiles=dict(zip(_PERCENTILES, np.rint(values).astype(int).tolist(), strict=True)),
        lengths=length_costs(sample.row_tokens, longest=longest),
    )
