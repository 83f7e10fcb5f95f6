"""Which of the splits that share their rows by `--hold-out` a row is in: a hash of its text says so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from pipelines.prepare.sources.left_out import CODES
from pipelines.prepare.sources.text_hashes import row_hashes
from tfrecord_io.ledger import HELD_OUT, NOT_HELD_OUT

__all__ = ["HASHES", "Side"]

# Hashes are numbers below this, which JSON holds exactly.
HASHES = 1 << 48
_SHIFT = np.uint64(64 - 48)
# Apart from everything else that is drawn by the same seed.
_PURPOSE = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """The rows whose `columns` have a hash in [low, high), if they are `held_out` for this split; or else all others,
    and those where one of the columns is null, but for the `optional` ones.
    """

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    seed: int
    low: int
    high: int
    held_out: bool

    @property
    def share(self) -> float:
        """About how many of the rows are on this side, over 0 and below 1."""
        share = (self.high - self.low) / HASHES
        return share if self.held_out else 1.0 - share

    def codes(self, batch: pa.RecordBatch) -> np.ndarray:
        """The code of each row, int8 [n] (see `left_out`); 0 for those on this side."""
        inside = self._inside(batch)
        if self.held_out:
            return np.where(inside, 0, CODES[NOT_HELD_OUT]).astype(np.int8)
        return np.where(inside, CODES[HELD_OUT], 0).astype(np.int8)

    def _inside(self, batch: pa.RecordBatch) -> np.ndarray:
        hashes = row_hashes([batch.column(name) for name in self.columns], seed=_hash_seed(self.seed)) >> _SHIFT
        inside = (hashes >= self.low) & (hashes < self.high)
        for name in self.columns:
            if name not in self.optional:
                inside &= ~np.asarray(batch.column(name).is_null().to_numpy(zero_copy_only=False), dtype=bool)
        return np.asarray(inside)


def _hash_seed(seed: int) -> int:
    return int(np.random.SeedSequence([seed, _PURPOSE]).generate_state(1, np.uint64)[0])
