"""Nested columns of damaged files: a changed bit is harmless or an error of ours, and never the end of a process."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.columns import ColumnPlan, extract, sizes_of
from tests import building
from tests.prepare.arrow_writing import write
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
    for _, batch in ArrowFiles((str(path),)).read([(0, ROWS)], PLAN.names):
        sizes_of(batch, PLAN.content)
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


@pytest.mark.slow
def test_a_changed_bit_is_harmless_or_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "nested.arrow", table(), stream=True)
    read_all(Path(path))
    command = [sys.executable, "-m", "tests.prepare.test_nested_damage", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=building.environment(), cwd=building.REPOSITORY)
    assert ended.returncode == 0, signal.Signals(-ended.returncode).name if ended.returncode < 0 else ended.stderr
    found = json.loads(ended.stdout)
    assert found["harmless"] + found["refused"] == FLIPS
    assert found["refused"] > FLIPS // 4


if __name__ == "__main__":
    main(Path(sys.argv[1]))
