"""Strange tokenizers one after the other, in several processes, for a while; and what came out, as text."""

from __future__ import annotations

import concurrent.futures
import faulthandler
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from scripts.benchmarks.figures import table
from tests.qualifying import fuzzing
from tests.qualifying.fuzzing import Outcome

__all__ = ["as_text", "outcomes", "try_all"]

# For one tokenizer. A healthy one takes a fraction of a second; the rest is for machines with other work.
_PATIENCE = 120
_WAITING = 2
_SHOWN = 20


def try_all(numbers: Iterable[int], *, seed: int, num_texts: int) -> list[Outcome]:
    """What comes out for tokenizers of these numbers, in this process."""
    return [fuzzing.try_number(seed, number, num_texts=num_texts) for number in numbers]


def outcomes(
    *, seed: int, minutes: float, processes: int, tokenizers: int | None, num_texts: int
) -> Iterator[tuple[float, Outcome]]:
    """(seconds since the start, outcome) of tokenizer 0, 1, 2, ..., until the time is over or there were `tokenizers`.

    Raises: BrokenProcessPool, which names the tokenizers under way, if one kills its process or keeps it for two
        minutes.
    """
    began = time.monotonic()
    numbers = iter(itertools.count() if tokenizers is None else range(tokenizers))
    with _pool(processes) as pool:
        waiting: dict[concurrent.futures.Future[Outcome], int] = {}
        while True:
            in_time = time.monotonic() - began < 60 * minutes
            for number in itertools.islice(numbers, processes * _WAITING - len(waiting) if in_time else 0):
                waiting[pool.submit(_watched, seed, number, num_texts)] = number
            if not waiting:
                return
            done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            under_way = sorted(waiting.values())
            for future in done:
                try:
                    outcome = future.result()
                except BrokenProcessPool as error:
                    what = f"seed {seed}: one of {under_way} killed its process; try each with --only NUMBER"
                    raise BrokenProcessPool(what) from error
                del waiting[future]
                yield time.monotonic() - began, outcome


def _pool(processes: int) -> concurrent.futures.ProcessPoolExecutor:
    # Each process is one of several: engines shall not start a thread for each core.
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", RUST_BACKTRACE="0")
    return concurrent.futures.ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_be_quiet
    )


def _be_quiet() -> None:
    """Libraries in Rust print each panic, although it is caught."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _watched(seed: int, number: int, num_texts: int) -> Outcome:
    faulthandler.dump_traceback_later(_PATIENCE, exit=True)
    try:
        return fuzzing.try_number(seed, number, num_texts=num_texts)
    finally:
        faulthandler.cancel_dump_traceback_later()


def as_text(every: Sequence[Outcome], *, seed: int) -> str:
    """A line for each family and who served it, and below the first findings with what replays them."""
    found = [finding for outcome in every for finding in outcome.findings]
    lines = [table(["family", "engine", "tokenizers", "texts", "rows", "differ"], _table_rows(every))]
    served = sum(outcome.is_served for outcome in every)
    differing = sum(outcome.differing for outcome in every)
    lines.append(
        f"seed {seed}: {len(every):,} tokenizers, {served:,} served by a fast engine; "
        f"{differing:,} texts or rows differ; {len(found):,} tokenizers with a finding"
    )
    for finding in found[:_SHOWN]:
        texts = " and ".join(map(ascii, finding.texts))
        lines.append(f"{finding.engine}, number {finding.number}: {texts} {finding.what}")
        lines.append(f"    python scripts/qualify_engines.py strange --seed {seed} --only {finding.number}")
    return "\n".join(lines)


def _table_rows(every: Sequence[Outcome]) -> list[list[str]]:
    groups = sorted({(outcome.family, outcome.engine) for outcome in every})
    rows = []
    for family, engine in groups:
        some = [outcome for outcome in every if (outcome.family, outcome.engine) == (family, engine)]
        counts = (len(some), *(sum(getattr(each, name) for each in some) for name in ("texts", "rows", "differing")))
        rows.append([family or "not opened", engine or "unusable", *(f"{count:,}" for count in counts)])
    return rows
