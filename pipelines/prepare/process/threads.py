"""Run a function in the background, or map it over items in several threads."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

POLL_SECONDS = 0.25

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_background(function: Callable[[], Result]) -> concurrent.futures.Future[Result]:
    """Run `function` on a daemon thread; return its Future."""
    done: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=work, name=in_background.__name__, daemon=True).start()
    return done


def wait_for(*results: concurrent.futures.Future[Any]) -> None:
    """Wait for all results, or raise the first error at once.

    It waits in short steps, because an interrupt in another thread does not wake this one.
    """
    waiting: set[concurrent.futures.Future[Any]] = {*results}
    while waiting:
        done, waiting = concurrent.futures.wait(
            waiting, timeout=POLL_SECONDS, return_when=concurrent.futures.FIRST_EXCEPTION
        )
        for future in done:
            future.result()


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """Yield `map(function, items)` in order, computed by `threads` threads, at most `threads` items ahead.

    With one thread, nothing is computed ahead. An error ends the iteration.
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
