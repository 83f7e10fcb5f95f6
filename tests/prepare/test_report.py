"""What people read while a build goes on and when it is done: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import time
from pathlib import Path

import pytest

from pipelines.prepare import progress, report
from pipelines.prepare.planning import ShardTask
from tests import building
from tests.building import REVIEWS, reviews

TASKS = [ShardTask(split="train", index=index, count=2, segments=((50 * index, 50 * index + 50),)) for index in (0, 1)]


@pytest.fixture(autouse=True)
def every_few_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a line is written where there is no terminal."""
    monkeypatch.setattr(report, "_LINE_SECONDS", 0.01)
    progress.reset()


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1234, "1.2 kB"),
        (98_600_000, "98.6 MB"),
        (5e9, "5.0 GB"),
        (2.5e13, "25.0 TB"),
    ],
)
def test_bytes_are_written_as_people_do(num_bytes: float, text: str) -> None:
    assert report.size(num_bytes) == text


def test_without_a_terminal_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with report.watch(TASKS):
        progress.add(rows=25, tokens=1000, num_bytes=2_000, shards=1)
        time.sleep(0.1)
    text = capsys.readouterr().err
    assert text.startswith("making 2 shards from 100 rows\n")
    assert re.search(r"^ 25%  [\d,]+ rows/s  [\d,]+ tokens/s  1 shards, 2\.0 kB$", text, re.M)
    assert "\x1b" not in text
    assert "\r" not in text


def test_without_tasks_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with report.watch([]):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_watching_ends_when_the_work_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArithmeticError), report.watch(TASKS[:1]):
        raise ArithmeticError
    assert capsys.readouterr().err.startswith("making 1 shard from 50 rows\n")
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_summary_counts_what_was_made(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    text = building.command("build", REVIEWS, *options).err
    train = building.read_manifest(reviews()).splits["train"]
    cells = next([cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│ train" in line)
    assert cells[:5] == ["train", "320", "320", "0", "320"]
    assert [int(cell.replace(",", "")) for cell in cells[5:8]] == [
        train.num_tokens,
        train.ledger.tokens_cut,
        len(train.shards),
    ]
    assert cells[8] == report.size(train.num_bytes)
    assert re.search(r"4 shards made, 0 kept from before, in \d+\.\d s \(fingerprint [0-9a-f]{12}\)", text)
    assert "tokenized by wordpiece 1: 400 rows" in text
    again = building.command("build", REVIEWS, *options).err
    assert "0 shards made, 4 kept from before" in again
    assert "making" not in again


def test_counters_add_up_over_threads() -> None:
    import threading

    progress.reset()

    def count() -> None:
        for _ in range(500):
            progress.add(rows=1, tokens=2, num_bytes=3, shards=4)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = progress.read()
    assert (counts.rows, counts.tokens, counts.num_bytes, counts.shards) == (2000, 4000, 6000, 8000)


def on_a_terminal(arguments: list[str]) -> tuple[int, str]:
    """Runs a process whose stderr is a terminal; returns its status and what came out there."""
    ours, theirs = pty.openpty()
    environment = {**building.environment(), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(arguments, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # a closed terminal reads as an input/output error
                    if part := os.read(ours, 65536):
                        parts.append(part)
                        continue
                break
        status = process.wait()
    os.close(ours)
    return status, b"".join(parts).decode()


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_that_goes_away(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    status, text = on_a_terminal(building.program("build", REVIEWS, *options))
    assert status == 0, text
    assert "━" in text
    assert re.search(r"\d+ %", text)
    assert "\x1b[2K" in text, "the bar's line is erased in the end"
    assert "shards made, 0 kept" in text
