"""What is refused, with which words, before any step is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.train.config import TrainConfig
from tests.train import training
from tfrecord_io.errors import ConfigError

SMALL = "tests.train.small"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "guess"}, "--task 'guess'"),
        ({"steps": 0}, "--steps 0"),
        ({"warmup": 10}, "--warmup 10"),
        ({"steps": 10, "steps_per_call": 4}, "--steps 10 with --steps-per-call 4"),
        ({"replicas": 3}, "32 on 3 replicas"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0, expected more than 0"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0"),
        ({"zone": "us-central1-b"}, "--zone and --project"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
    ],
)
def test_a_wrong_option_is_named(changes: dict[str, object], words: str) -> None:
    options: dict[str, object] = {
        "data": "d", "task": "classify", "model": "bert-tiny", "model_dir": "m", "tpu": "none",
        "global_batch_size": 32, "steps": 10, "log_every": 2, **changes,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": f"{SMALL}:narrow"}, "vocabulary ends at 10"),
        ({"model": f"{SMALL}:wide"}, "shape [B, 3], expected logits [B, 2]"),
        ({"model": f"{SMALL}:broken"}, "KeyError"),
        ({"model": f"{SMALL}:nothing"}, "expected a keras.Model"),
        ({"model": f"{SMALL}:absent"}, "absent"),
        ({"model": "no_such_module:build"}, "no_such_module"),
        ({"model": "bert-huge"}, "expected a size"),
        ({"model": "bert-tiny", "task": "clm"}, "an encoder, which sees what follows"),
        ({"model": "gpt2-tiny", "task": "mlm"}, "a decoder"),
        ({"model": "./no-such-folder"}, "cannot be loaded"),
        ({"num_labels": 5}, "--num-labels 5"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    outcome = training.command(tmp_path, **changes)
    assert outcome.status == 2
    cause, remedy = outcome.error
    assert words in cause
    assert remedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"data": "no-such-folder"}, "manifest"), ({"eval_split": "holdout"}, "--eval-split holdout")],
)
def test_data_that_is_not_there_is_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    outcome = training.command(tmp_path, **changes)
    cause, remedy = outcome.error
    assert words in cause
    assert remedy


def test_a_training_needs_a_folder_to_write_to() -> None:
    cause, remedy = training.command(None).error
    assert cause.startswith("no --model-dir")
    assert "--preflight" in remedy


def test_a_preflight_needs_none() -> None:
    cause, _ = training.command(None, preflight="v3-7").error
    assert cause.startswith("--preflight 'v3-7'"), "only the slice is wrong"
