"""Options by themselves: what contradicts what, epochs and shares; and two lines for whatever ends `train-tpu`."""

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipelines.train import backends, cli
from pipelines.train.config import TrainConfig
from pipelines.train.progress import TrainingProgress
from tests.support import seams
from tests.train import training
from tfrecord_io.errors import ConfigError
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE


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
def test_epochs_are_steps_enough_for_all_rows(epochs: float, rows: int, changes: dict[str, object], steps: int) -> None:
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
        ({"data": ("d", "e"), "weights_from": ("5:1,1",)}, "without --weights"),
        ({"data": ("d", "e"), "weights": "1,1", "weights_from": ("5:1",)}, "for each of the 2"),
        ({"data": ("d", "e"), "weights": "1,1", "weights_from": ("5:1,1", "4:1,1")}, "ascending steps above 0"),
        ({"data": ("d", "e"), "weights": "1,1", "weights_from": ("0:1,1",)}, "ascending steps above 0"),
        ({"data": ("d", "e"), "weights": "1,1", "weights_from": ("x:1,1",)}, "expected numbers such as"),
        ({"data": ()}, "no --data"),
        ({"steps": 10, "epochs": 1}, "--steps and --epochs are given together"),
        ({"warmup": 10, "warmup_ratio": 0.1}, "--warmup and --warmup-ratio"),
        ({"epochs": 0}, "--epochs 0, expected more than 0"),
        ({"epochs": float("inf")}, "--epochs inf"),
        ({"warmup_ratio": 1.0}, "--warmup-ratio 1.0"),
        ({"schedule": "step"}, "--schedule 'step'"),
        ({"accumulate": 0}, "--accumulate 0"),
        ({"accumulate": 5, "replicas": 2}, "32 on 2 replicas with --accumulate 5, expected a multiple of 10"),
        ({"early_stopping": 2}, "--early-stopping needs --eval-every"),
        ({"keep_best": True}, "--keep-best needs --eval-every"),
        ({"best_metric": "f1"}, "--best-metric f1 has no effect without"),
    ],
)
def test_options_that_contradict_each_other_are_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert words in str(caught.value)


def test_a_warm_up_longer_than_the_epochs_is_refused_once_that_is_known() -> None:
    with pytest.raises(ConfigError, match="--warmup 50, expected fewer than the 10 steps of the training run"):
        config(epochs=1, warmup=50).sized(rows=320)


def test_an_interrupt_speaks_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, train=seams.raising(KeyboardInterrupt()))
    outcome = training.command(tmp_path, data="D")
    assert (outcome.status, outcome.error[0]) == (130, "interrupted")
    assert outcome.error[1] == "run the same command again, which continues from the last checkpoint in --model-dir"


@pytest.mark.parametrize(
    ("data", "order", "own", "expected"),
    [
        ("gs://bucket/out", "global", None, "0"),
        ("gs://bucket/out", "global", "16", "16"),
        ("gs://bucket/out", "hosts", None, None),
        ("out", "global", None, None),
    ],
)
def test_tensorflow_asks_a_bucket_for_exact_ranges_where_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, order: str, own: str | None, expected: str | None
) -> None:
    """The variable must be set before TensorFlow is imported, which reads it then."""
    seen: list[str | None] = []

    def stop(*, verbose: bool, backend: str) -> None:
        seen.append(os.environ.get(GCS_BLOCK_SIZE))
        raise KeyboardInterrupt

    monkeypatch.setenv(GCS_BLOCK_SIZE, own or "")
    if own is None:
        monkeypatch.delenv(GCS_BLOCK_SIZE)
    monkeypatch.setattr(backends, "load", stop)
    assert training.command(tmp_path, data=data, order=order).status == 130
    assert seen == [expected]


def test_an_unknown_error_is_two_lines_without_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, train=seams.raising(KeyError("https://me:hush@host/x?sig=hush \x1b[2J")))
    short, long = (training.command(tmp_path, data="D", verbose=verbose) for verbose in (None, True))
    assert short.status == long.status == 1
    assert short.error[0] == r"unexpected KeyError: 'https://...@host/x?... \x1b[2J'"
    assert len(short.err.splitlines()) == 2
    assert long.err.count("Traceback") == 1
    assert long.err.splitlines()[-2:] == short.err.splitlines()
    assert "hush" not in long.err


def test_names_of_splits_do_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts: dict[str, Any] = {"total": 2, "batch_size": 1, "tokens_per_example": lambda _: 1.0, "as_json": False}
    progress = TrainingProgress(log_dir=str(tmp_path), **facts)
    progress.evaluation(1, split="te\x1b[2Jst\u202e", metrics={"loss": 1.0}, examples=3)
    progress.note("saved\r\n")
    progress.close()
    told = capsys.readouterr().err
    assert r"te\x1b[2Jst\u202e: loss 1.0000  (3 examples)" in told
    assert told.endswith("saved\\r\\n\n")


def words(*arguments: str) -> Any:
    return CliRunner().invoke(cli.main, list(arguments))


def test_a_command_of_its_own_needs_no_option_of_a_training() -> None:
    assert words("predict", "--help").exit_code == words("export", "--help").exit_code == 0
    refused = words("export")
    assert refused.exit_code == 2
    assert "--model" in refused.output
    assert "--data" not in refused.output


def test_a_training_still_needs_its_options_and_a_command_that_is_none_is_named() -> None:
    assert "missing option '--data'" in words().output
    refused = words("predcit", "--model", "m")
    assert refused.exit_code == 2
    assert "no command 'predcit', expected options, or the command export or predict" in refused.output
