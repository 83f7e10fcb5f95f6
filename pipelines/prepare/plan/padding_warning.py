"""A warning before making a dataset that would be nearly all padding."""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np

from pipelines.prepare.options.config import PrepareConfig
from pipelines.prepare.plan.sampling import Sample

__all__ = ["advice", "warn"]

_MOST = 0.9

_log = logging.getLogger(__name__)


def warn(samples: Collection[tuple[Sample, int]], config: PrepareConfig, *, length: int) -> None:
    """Warn once if more than 90 % of all splits' positions are padding; `samples` pairs each sample with its rows."""
    padded = [(sample, rows) for sample, rows in samples if sample.padding is not None]
    if not padded:
        return
    shares, rows = np.array([sample.padding for sample, _ in padded]), [rows for _, rows in padded]
    share = float(np.average(shares, weights=rows))
    if share > _MOST:
        longest = np.percentile(np.concatenate([sample.row_tokens for sample, _ in padded]), 99)
        _log.warning(
            "%.1f %% of the tokens in records would be padding: records have up to %d tokens, but 99 %% of the sampled "
            "rows have at most %.0f; %s",
            100 * min(share, 0.999),
            length,
            longest,
            advice(config),
        )


def advice(config: PrepareConfig) -> str:
    """Return what to type for less padding."""
    layout, source = config.layout, config.source
    beside = source.label_column or source.keep_columns
    if layout.bucket_lengths is not None:
        return "give shorter --bucket-lengths"
    ways = []
    if layout.name == "chat" and not beside:
        ways.append("--pack-rows")
    if layout.name == "pad" and not beside and len(source.text_columns) == 1:
        ways.append("--layout pack")
    if layout.name == "pad" and layout.stride is None:
        ways.append("--bucket-lengths auto:4")
    return f"give {', '.join([*ways, 'or a smaller --max-length' if ways else 'a smaller --max-length'])}"
