"""Doing things beside each other: a function beside its caller, and the next items of a map while one is taken."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

__all__ = ["POLL_SECONDS", "begun", "ordered_map", "wait_for"]

POLL_SECONDS = 0.25

Item = TypeVar("Item")
Result = TypeVar("Result")


def begun(function: Callable[[], Result]) -> concurrent.futures.Future[Result]:
    """What `function` will give, on a thread that nobody has to wait for, not even the end of the process."""
    done: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=work, name=begun.__name__, daemon=True).start()
    return done


def wait_for(*begun: concurrent.futures.Future[Any]) -> None:
    """Waits until all are done, or one has failed, and raises its error then: nobody waits for the others.

    The system may hand an interrupt to another thread, which wakes nobody: this one looks for itself.
    """
    waiting: set[concurrent.futures.Future[Any]] = {*begun}
    while waiting:
        done, waiting = concurrent.futures.wait(
            waiting, timeout=POLL_SECONDS, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        for each in done:
            each.result()


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """`map(function, items)` on `threads` threads, results in order, at most `threads` items ahead.

    With one thread it is `map` itself. An error ends the iteration; what is under way is waited for.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        ahead: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
