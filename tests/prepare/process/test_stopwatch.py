"""Seconds go to the stage in which they passed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pipelines.prepare.process.stopwatch import Stopwatch


class Clock:
    """A time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


def test_each_stage_has_the_time_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(monkeypatch), Stopwatch()
    with watch.stage("read"):
        clock.now += 2
    clock.now += 100
    with watch.stage("write"):
        clock.now += 3
    with watch.stage("read"):
        clock.now += 4
    assert watch.seconds == {"read": 6, "write": 3}


def test_waiting_for_items_counts_and_using_them_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, watch = Clock(monkeypatch), Stopwatch()

    def slow() -> Iterator[int]:
        for item in range(3):
            clock.now += 1
            yield item
        clock.now += 1

    taken = []
    for item in watch.waiting("read", slow()):
        clock.now += 50
        taken.append(item)
    assert taken == [0, 1, 2]
    assert watch.seconds == {"read": 4}


def test_an_error_counts_too_and_passes() -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="x"), watch.stage("write"):
        raise ValueError("x")
    assert list(watch.seconds) == ["write"]


def test_threads_add_up() -> None:
    watch = Stopwatch()

    def work() -> None:
        with watch.stage("tokenize"):
            time.sleep(0.05)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch.seconds["tokenize"] >= 0.2
