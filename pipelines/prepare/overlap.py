"""Doing the next item while the last one is taken: a map that keeps its order and looks a few items ahead."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["ordered_map"]

Item = TypeVar("Item")
Result = TypeVar("Result")


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
