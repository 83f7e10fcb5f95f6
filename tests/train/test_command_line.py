"""How `train-tpu` talks: two lines for whatever ends it, and nothing that controls a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipelines.train import backends, cli, run
from pipelines.train.progress import Progress
from tests.train import training
from tfrecord_io.ordering.global_order import GCS_BLOCK_SIZE


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    return fail


def test_an_interrupt_speaks_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "train", raising(KeyboardInterrupt()))
    outcome = training.command(tmp_path, data="D")
    assert outcome.status == 130
    assert outcome.error == (
        "interrupted",
        "run the same command again; it goes on from the last checkpoint in --model-dir",
    )


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
    """Before TensorFlow is imported, which reads the variable then."""
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


def test_what_nobody_foresaw_is_two_lines_and_a_traceback_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "train", raising(KeyError("https://me:hush@host/x?sig=hush \x1b[2J")))
    short, long = (training.command(tmp_path, data="D", verbose=verbose) for verbose in (None, True))
    assert short.status == long.status == 1
    assert short.error[0] == r"unexpected KeyError: 'https://...@host/x?... \x1b[2J'"
    assert len(short.err.splitlines()) == 2
    assert long.err.count("Traceback") == 1
    assert long.err.splitlines()[-2:] == short.err.splitlines()
    assert "hush" not in long.err


def test_names_of_splits_do_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(log_dir=str(tmp_path), total=2, batch_size=1, tokens_per_example=1.0, as_json=False)
    progress.evaluation(1, split="te\x1b[2Jst\u202e", metrics={"loss": 1.0}, examples=3)
    progress.note("saved\r\n")
    progress.close()
    told = capsys.readouterr().err
    assert r"te\x1b[2Jst\u202e: loss 1.0000  (3 examples)" in told
    assert told.endswith("saved\\r\\n\n")


def words(*arguments: str) -> Any:
    """Cause and status of a command line that click refuses."""
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
    assert "no command 'predcit', expected options, or one of export, predict" in refused.output
