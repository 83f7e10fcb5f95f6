"""A map that looks ahead gives what `map` gives, and never looks far."""

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from pipelines.prepare.process.threads import in_background, ordered_map, wait_for
from tests.support import limits

THREADS = [1, 2, 3, 8]


def _watched(count: int, taken: list[int]) -> Iterator[int]:
    for index in range(count):
        taken.append(index)
        yield index


@pytest.mark.parametrize("threads", THREADS)
def test_results_come_in_the_order_of_the_items_whichever_is_ready_first(threads: int) -> None:
    def later_ones_are_faster(item: int) -> int:
        time.sleep(0.004 if item % threads == 0 else 0)
        return item * item

    assert list(ordered_map(later_ones_are_faster, range(30), threads=threads)) == [item * item for item in range(30)]


@pytest.mark.parametrize("threads", THREADS)
def test_no_more_items_are_taken_than_there_are_threads_ahead_of_the_results(threads: int) -> None:
    taken: list[int] = []
    for number, _ in enumerate(ordered_map(str, _watched(50, taken), threads=threads)):
        assert len(taken) <= number + 1 + threads
    assert taken == list(range(50))


def test_several_items_are_under_way_at_once() -> None:
    # Each waits for the other: with one at a time this would break the barrier.
    barrier = threading.Barrier(2, timeout=limits.ANSWER)
    assert sorted(ordered_map(lambda item: barrier.wait() * 0 + item, range(4), threads=2)) == [0, 1, 2, 3]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("where", ["function", "items"])
def test_an_error_comes_after_the_results_before_it(threads: int, where: str) -> None:
    def fail_at_five(item: int) -> int:
        if item == 5:
            raise ValueError("item five")
        return item

    every = map(fail_at_five, range(20)) if where == "items" else range(20)
    results = ordered_map(fail_at_five, every, threads=threads)
    first = list(itertools.islice(results, 5 if where == "function" else 0))
    assert first == list(range(len(first)))
    with pytest.raises(ValueError, match="item five"):
        list(results)
    assert list(results) == []


@pytest.mark.parametrize("threads", THREADS)
def test_leaving_early_waits_for_what_is_under_way_and_starts_nothing_more(threads: int) -> None:
    done: list[int] = []

    def work(item: int) -> int:
        time.sleep(0.002)
        done.append(item)
        return item

    results = ordered_map(work, itertools.count(), threads=threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()  # type: ignore[attr-defined]
    finished = len(done)
    time.sleep(0.02)
    assert len(done) == finished <= 3 + threads


def test_waiting_for_a_function_in_the_background_gives_its_result_or_error() -> None:
    def fail() -> None:
        raise KeyError("early")

    assert wait_for(in_background(lambda: sum([1, 2]))) == 3
    with pytest.raises(KeyError, match="early"):
        wait_for(in_background(fail))
