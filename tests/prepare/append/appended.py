"""Sources that grow, and datasets that are appended to, for tests."""

import functools
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.shards import shard_writer
from tests import building
from tests.building import Outcome
from tests.support import seams
from tfrecord_io.errors import OutputError

OLD, NEW = range(60), range(60, 100)
OPTIONS: dict[str, object] = {"keep_column": "number", "shard_size": "5kB", "name": "rows"}


def row(number: int) -> dict[str, Any]:
    """A row that says its number, as text and as a value to keep."""
    text = f"film number {number} is fine" + " and long" * (2 * (number % 3))
    return {"text": text, "number": number, "label": ["bad", "good"][number % 2]}


def json_lines(path: Path, numbers: Iterable[int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in numbers))
    return path


def parquet(path: Path, numbers: Iterable[int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row(number) for number in numbers]), path, row_group_size=16)
    return path


def build(data: object, output: object, *words: object, **changes: object) -> Outcome:
    return building.command("build", data, *words, "--json", *building.options(output, **{**OPTIONS, **changes}))


def done(outcome: Outcome) -> Mapping[str, Any]:
    assert outcome.status == 0, outcome.err
    summary: dict[str, Any] = json.loads(outcome.out)
    return summary


def grown(folder: Path, **changes: object) -> tuple[Path, Path]:
    """Return a source with a file that the finished dataset lacks, and the dataset."""
    shutil.copytree(_first(**changes), folder, dirs_exist_ok=True)
    json_lines(folder / "data" / "train-b.jsonl", NEW)
    return folder / "data", folder / "out"


@functools.cache
def _first(**changes: object) -> Path:
    folder = building.new_folder()
    done(build(json_lines(folder / "data" / "train-a.jsonl", OLD).parent, folder / "out", **changes))
    return folder


def numbers(root: object, split: str = "train") -> list[int]:
    shards = building.read_manifest(root).splits[split].shards
    return [number for shard in shards for number in building.read_shard(root, shard)["number"].tolist()]


def stop_at_second_shard(patch: pytest.MonkeyPatch) -> None:
    write, calls = shard_writer.write, itertools.count(1)

    def stopping(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise OutputError("stopped")
        return write(*arguments, **options)

    seams.put(patch, write_shard=stopping)
