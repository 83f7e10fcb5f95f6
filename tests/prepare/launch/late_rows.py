"""A source with one row that cannot be used, which a worker finds: the launcher's sample does not have it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.plan import sample_rows
from tests import building

FOUND_BY_A_SHARD = "train[199] cannot be used (too_long); --max-error-rate 0 allows no such row"


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of this process sample 16 rows."""
    monkeypatch.setattr(sample_rows, "ROWS", 16)


def only_shards_find(folder: Path) -> tuple[Path, list[object]]:
    """The source, and the options of a build into `folder`/out that ends with FOUND_BY_A_SHARD."""
    rows = [{"text": "word " * (50 if row == 199 else 5)} for row in range(200)]
    data = folder / "train.parquet"  # read in place, so that no job comes before the one that makes shards
    pq.write_table(pa.Table.from_pylist(rows), data)
    return data, building.options(folder / "out", truncation="do_not_truncate", no_shuffle=True, shard_size="2kB")
