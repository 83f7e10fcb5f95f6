"""The scan knows the rows' lengths and every row that cannot be used, and reads no text for it."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np

from pipelines.prepare import job
from pipelines.prepare.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.prediction import Curve
from pipelines.prepare.scan import scan
from tests import building
from tests.prepare.arrow_writing import reads

ROWS = 500
TEXT = "some words " * 1_000


def test_lengths_and_unusable_rows_are_found_without_reading_a_text(tmp_path: Path) -> None:
    texts = [None if row % 50 == 7 else TEXT for row in range(ROWS)]
    labels = [None if row % 100 == 9 else row % 2 for row in range(ROWS)]
    datasets.Dataset.from_dict({"text": texts, "label": labels}).save_to_disk(tmp_path / "saved")
    config = PrepareConfig(
        source=SourceConfig(dataset=str(tmp_path / "saved"), label_column="label"),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=str(tmp_path / "out"), name="long", shard_bytes=20_000),
        layout=LayoutConfig(max_length=32),
    )
    opened = job.resolve(config).job
    curve = Curve(text_bytes=np.array([0.0, 1e6]), output_bytes=np.array([0.0, 1e6]))
    with reads() as seen:
        found = scan(opened, opened.splits["train"], curve=curve, block_rows=100)
    assert found.text_bytes == (ROWS - 10) * len(TEXT)
    assert found.rejected == {"text_null": 10, "label_null": 5}
    assert [found.blocks.starts[0], found.blocks.stops[-1]] == [0, ROWS]
    assert sum(stop - start for start, stop in seen) < 30_000
