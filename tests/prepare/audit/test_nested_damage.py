"""Nested columns of damaged files: a changed bit is harmless or an error of ours, and never the end of a process."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Inputs, extract, text_bytes_of
from tests import building
from tfrecord_io.errors import PrepError

ROWS, FLIPS = 60, 400
PLAN = ColumnPlan(texts=(), nested={"messages": "messages", "words": "words"})


def table() -> pa.Table:
    turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": None}]
    return pa.Table.from_pylist(
        [{"messages": turns * (row % 3), "words": ["a", "bb", None][: row % 4]} for row in range(ROWS)]
    )


def read_all(path: Path) -> None:
    """What a build does with the columns before it tokenizes them."""
    config = SourceConfig(dataset=str(path))
    source = building.opened(config)
    plan_columns(config, source, inputs=Inputs(nested=PLAN.nested))
    split = source.splits["train"]
    for _, batch in split.read(split.ranges, PLAN.names):
        text_bytes_of(batch, PLAN.content)
        rows, _ = extract(batch, PLAN)
        for column in rows.nested.values():
            column.to_pylist()


def main(path: Path) -> None:
    """Reads the file with one bit after another changed; prints what became of it."""
    whole, found, rng = path.read_bytes(), Counter[str](), random.Random(0)
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            read_all(path)
            found["harmless"] += 1
        except PrepError:
            found["refused"] += 1
    print(json.dumps(found))


def arrow(path: Path) -> None:
    with pa.ipc.new_stream(str(path), table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)


WRITERS: dict[str, Callable[[Path], object]] = {
    "nested.arrow": arrow,
    "nested.parquet": lambda path: pq.write_table(table(), path, row_group_size=20, compression="none"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_changed_bit_is_harmless_or_an_error(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    read_all(tmp_path / name)
    command = [sys.executable, "-m", "tests.prepare.audit.test_nested_damage", str(tmp_path / name)]
    ended = subprocess.run(command, capture_output=True, text=True, env=building.environment(), cwd=building.REPOSITORY)
    assert ended.returncode == 0, signal.Signals(-ended.returncode).name if ended.returncode < 0 else ended.stderr
    found = json.loads(ended.stdout)
    assert found["harmless"] + found["refused"] == FLIPS
    assert found["refused"] > FLIPS // 8


if __name__ == "__main__":
    main(Path(sys.argv[1]))
