"""Run a function in the background, or map it over items in several threads."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

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


def wait_for(future: concurrent.futures.Future[Result]) -> Result:
    """Return a future's result, or raise its error. Waiting in short steps lets an interrupt end it."""
    while not concurrent.futures.wait([future], timeout=POLL_SECONDS).done:
        pass
    return future.result()


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """Yield `map(function, items)` in order, computed by `threads` threads, at most that many items ahead."""
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
