"""Options by themselves: what contradicts what, and steps that are given in epochs and shares."""

from __future__ import annotations

import pytest

from pipelines.train.config import TrainConfig
from tfrecord_io.errors import ConfigError


def config(**changes: object) -> TrainConfig:
    options: dict[str, object] = {"data": "d", "task": "classify", "model": "bert-tiny", **changes}
    return TrainConfig(**options)  # type: ignore[arg-type]


def test_without_an_option_there_are_1000_steps_of_32_rows() -> None:
    assert (config().total_steps, config().global_batch_size) == (1000, 32)
    assert config().sized(rows=5) == config()


@pytest.mark.parametrize(
    ("epochs", "rows", "changes", "steps"),
    [
        (1, 64, {}, 2),
        (1, 65, {}, 3),
        (3, 320, {}, 30),
        (0.5, 320, {}, 5),
        (0.1, 10, {}, 1),
        (1.1, 320, {}, 11),
        (1, 320, {"steps_per_call": 4, "log_every": 4}, 12),
    ],
)
def test_epochs_are_as_many_steps_as_it_takes_to_read_the_rows(
    epochs: float, rows: int, changes: dict[str, object], steps: int
) -> None:
    assert config(epochs=epochs, **changes).sized(rows=rows).total_steps == steps


def test_a_share_of_the_steps_is_the_warm_up() -> None:
    assert config(epochs=10, warmup_ratio=0.1).sized(rows=320).warmup == 10
    assert config(steps=5, warmup_ratio=0.1, log_every=1).sized(rows=320).warmup == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "guess"}, "--task 'guess'"),
        ({"steps": 0}, "--steps 0"),
        ({"steps": 2.5}, "--steps 2.5, expected a whole number"),
        ({"steps": 10, "warmup": 10}, "--warmup 10"),
        ({"steps": 10, "log_every": 2, "steps_per_call": 4}, "--steps 10 with --steps-per-call 4"),
        ({"replicas": 3}, "32 on 3 replicas"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0, expected more than 0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0, expected less than 1"),
        ({"zone": "us-central1-b", "tpu": "none"}, "--zone and --project"),
        ({"data": "d", "weights": "1"}, "with one --data"),
        ({"data": "d", "temperature": 2.0}, "with one --data"),
        ({"data": ("d", "e"), "weights": "1"}, "for each of the 2 --data"),
        ({"data": ("d", "e"), "weights": "1,0"}, "above 0"),
        ({"data": ("d", "e"), "weights": "1,nan"}, "above 0"),
        ({"data": ("d", "e"), "weights": "much,little"}, "0.7,0.3"),
        ({"data": ("d", "e"), "weights": "1,1", "temperature": 2.0}, "expected one of them"),
        ({"data": ("d", "e"), "temperature": 0.0}, "--temperature 0.0"),
        ({"data": ()}, "no --data"),
        ({"steps": 10, "epochs": 1}, "--steps and --epochs together"),
        ({"warmup": 10, "warmup_ratio": 0.1}, "--warmup and --warmup-ratio"),
        ({"epochs": 0}, "--epochs 0, expected more than 0"),
        ({"epochs": float("inf")}, "--epochs inf"),
        ({"warmup_ratio": 1.0}, "--warmup-ratio 1.0"),
        ({"schedule": "step"}, "--schedule 'step'"),
        ({"accumulate": 0}, "--accumulate 0"),
        ({"accumulate": 5, "replicas": 2}, "32 on 2 replicas with --accumulate 5, expected a multiple of 10"),
        ({"early_stopping": 2}, "--early-stopping without --eval-every"),
        ({"keep_best": True}, "--keep-best without --eval-every"),
        ({"best_metric": "f1"}, "--best-metric f1 by itself"),
    ],
)
def test_options_that_contradict_each_other_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert words in str(caught.value)


def test_a_warm_up_longer_than_the_epochs_is_refused_once_that_is_known() -> None:
    with pytest.raises(ConfigError, match="--warmup 50, expected fewer steps than the 10 of the training"):
        config(epochs=1, warmup=50).sized(rows=320)


def test_options_that_are_not_used_leave_the_identity_as_it_was() -> None:
    names = {"task", "model", "global_batch_size", "seed", "train_split", "mask_probability", "pooling"}
    assert config().identity().keys() == names
    assert config(from_scratch=True).identity().keys() == names | {"from_scratch"}
