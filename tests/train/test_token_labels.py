"""The task `tokens`: a class for each token that has one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.train import tasks
from pipelines.train.config import TrainConfig
from tests.tfrecord_io.conftest import WriteDataset, make_manifest, pad_rows, write_dataset
from tests.tfrecord_io.objectives.test_objectives_labelled import TAGS_SCHEMA
from tests.train import training
from tfrecord_io.errors import ConfigError

__all__ = ["write_dataset"]  # a fixture


def tagged(num_rows: int) -> dict[str, np.ndarray]:
    """Rows whose tokens have one of three tags, which follows from their ids; special tokens have none."""
    rows = pad_rows(num_rows)
    ids = np.where(rows["input_ids"] > 4, 5 + rows["input_ids"] % 12, rows["input_ids"])
    return {
        "input_ids": ids,
        "attention_mask": rows["attention_mask"],
        "tags": np.where(ids > 4, ids % 3, 0),
        "tag_mask": (ids > 4).astype(np.int64),
    }


def config(**changes: object) -> TrainConfig:
    options: dict[str, object] = {"data": "d", "task": "tokens", "model": "bert-tiny", "model_dir": "m", **changes}
    return TrainConfig(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_labels_of_tokens_are_learned(tmp_path: Path, write_dataset: WriteDataset) -> None:
    data = write_dataset({"train": [tagged(300)], "validation": [tagged(50)]}, schema=TAGS_SCHEMA)
    outcome = training.command(
        tmp_path / "model", data=data, task="tokens", model="bert-tiny", num_labels=3, steps=30, learning_rate=3e-3
    )
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["accuracy"] > 0.6, "guessing finds a third"
    assert "perplexity" not in found


def test_the_number_of_labels_is_needed_where_they_have_no_names() -> None:
    manifest = make_manifest(TAGS_SCHEMA)
    assert tasks.bind(config(num_labels=3), manifest).num_outputs == 3
    with pytest.raises(ConfigError, match="--num-labels N"):
        tasks.bind(config(), manifest)


def test_a_model_of_another_width_is_refused(tmp_path: Path, write_dataset: WriteDataset) -> None:
    data = write_dataset({"train": [tagged(20)], "validation": [tagged(5)]}, schema=TAGS_SCHEMA)
    outcome = training.command(tmp_path, data=data, task="tokens", model="tests.train.small:everywhere", num_labels=3)
    assert outcome.status == 2
    assert "expected logits [B, L, 3] for --task tokens" in outcome.error[0]
