"""A large file of lines is read in ranges: the same rows, wherever it is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.process import workers
from pipelines.prepare.sources.resolve import line_ranges
from pipelines.prepare.sources.rows import opening
from tests import building

ROWS = [{"text": "x" * (row % 50) + "é", "label": row} for row in range(400)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "content", "options", "shards"),
    [
        ("a.jsonl", LINES, {}, 12),
        ("a.jsonl", LINES.replace("\n", "\r\n")[:-2], {}, 13),
        ("a.txt", "a\n\n" + LINES, {}, 12),
        ("a.txt", LINES, {"sample_by": "document"}, 1),
        ("a.json", json.dumps(ROWS), {}, 1),
        ("a.csv", "text,label\n" + "a,1\n" * 500, {}, 1),
    ],
)
@pytest.mark.parametrize("part_bytes", [1_700, 1_701])
def test_ranges_have_the_rows_of_the_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str,
    options: dict[str, Any],
    shards: int,
    part_bytes: int,
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    config = SourceConfig(dataset=str(tmp_path), **options)
    expected = rows_of(config)
    monkeypatch.setattr(workers, "call", lambda function, *arguments: function(*arguments))  # in this process
    monkeypatch.setattr(line_ranges, "_LARGE_BYTES", 100)
    monkeypatch.setattr(line_ranges, "_PART_BYTES", part_bytes)
    stream = opening.open_source(config, columns=None).streams(["train"])["train"]
    assert stream.num_shards in (shards, shards + 1)
    assert set(stream.shard_files) == {0}, "each shard is known to be of the file"
    assert rows_of(config) == expected


def rows_of(config: SourceConfig) -> list[object]:
    split = building.opened(config).splits["train"]
    return [row for _, batch in split.read(split.ranges, split.reader.types.names) for row in batch.to_pylist()]
