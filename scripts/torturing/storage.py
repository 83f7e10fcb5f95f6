"""Storage: whatever operation fails in the middle of a build, it ends in one of two ways.

Either it is complete, or it ends with two lines of error and without a manifest. And the same command afterwards, when
storage works again, makes the very dataset of a build to which nothing happened.

Every operation of an object store fails once, and now and then all that come after it too; so does every fsync and
every rename on a local disk; and files may not grow beyond a limit.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
from collections.abc import Callable

from scripts.torturing import failing, processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Ground, Recipe, completed, ended

__all__ = ["run"]

_LASTING_EVERY = 5
# The tokenizer takes 43 kB, so that the larger limit is met by shards alone.
_TOKENIZER_LIMIT = 20_000
_SHARD_LIMIT = 60_000


def run(ground: Ground, *, operations: int | None = None) -> list[Figure]:
    """Lets `operations` of the storage operations of a build fail, or every one. Returns: the figures."""
    storage = _Storage(ground, operations=operations)
    return [storage.store(), storage.local(), storage.limited()]


class _Storage:
    """Operations that fail, one in each run."""

    def __init__(self, ground: Ground, *, operations: int | None) -> None:
        self._ground = ground
        # Two splits of one shard each, so that there are few operations, of every kind.
        self._recipe = ground.recipe(rows=30, shard_size="1MB", max_length=16, workers=1)
        self._operations = operations

    def store(self) -> Figure:
        """Every operation of an object store, once; for some of them, all that come after it too."""
        figure = Figure(section="storage", claim="object store: an operation fails; a clear end, then it goes on")
        self._each(figure, failing.break_store, protocol=f"{failing.PROTOCOL}://")
        return figure

    def local(self) -> Figure:
        """Every fsync and every rename on a local disk, once."""
        figure = Figure(section="storage", claim="local disk: an fsync or rename fails; the same")
        self._each(figure, functools.partial(failing.break_local, folder=str(self._ground.workdir)))
        return figure

    def limited(self) -> Figure:
        """A limit on the size of files, which is in the way of the saved tokenizer or of a shard."""
        figure = Figure(section="storage", claim="local disk: a file may not grow any more; the same")
        for limit in (_TOKENIZER_LIMIT, _SHARD_LIMIT):
            recipe = self._ground.recipe(rows=400, shard_size=str(2 * _SHARD_LIMIT), workers=1)
            problem = self._attempt(recipe, functools.partial(_limit, limit))
            figure.check(problem and f"limit of {limit} bytes: {problem}")
        return figure

    def _each(self, figure: Figure, breaking: Callable[[failing.Faults], None], *, protocol: str = "") -> None:
        """One attempt for each operation of a run in which none fails."""

        def attempt(fail_at: int, *, lasting: bool = False) -> int:
            log = self._ground.fresh("operations")
            faults = failing.Faults(log=str(log), fail_at=fail_at, lasting=lasting)
            problem = self._attempt(self._recipe, functools.partial(breaking, faults), protocol=protocol)
            count, failed = faults.logged()
            figure.check(problem and f"operation {fail_at}{' and all after it' * lasting}, {failed}: {problem}")
            log.unlink()
            return count

        count = attempt(0)
        for fail_at in range(1, count + 1, -(-count // (self._operations or count))):
            attempt(fail_at)
            if fail_at % _LASTING_EVERY == 0:
                attempt(fail_at, lasting=True)
        figure.note = f"{count} operations in a build of {self._ground.clean(self._recipe).num_shards} shards"

    def _attempt(self, recipe: Recipe, before: Callable[[], None], *, protocol: str = "") -> str:
        """A build with something wrong, then one with nothing wrong. Returns: what they did not do as they should."""
        output = self._ground.fresh("faulty")
        clean = self._ground.clean(recipe)
        arguments = recipe.arguments(f"{protocol}{output}")
        problem = ended(processes.run(*arguments, before=before), output, clean)
        sound = functools.partial(failing.break_store, failing.Faults(log=os.devnull)) if protocol else None
        problem = problem or completed(processes.run(*arguments, before=sound), output, clean)
        shutil.rmtree(output, ignore_errors=True)
        return problem


def _limit(num_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))
