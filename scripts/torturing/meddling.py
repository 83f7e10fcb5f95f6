"""Meddling: somebody changes what a build reads or writes, while it is at work.

It is complete and right all the same, or ends with two lines of error and without a manifest; and when everything is
back where it was, the same command makes the very dataset of a build to which nothing happened.

The build is stopped (SIGSTOP) once it has a certain number of receipts, and goes on (SIGCONT) after the change, so that
the change always comes in its middle. Two kinds of source: JSON lines, which `datasets` has turned into files of its
own by then, and a folder that `save_to_disk` wrote, whose files are read where they are.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import datasets

from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Ground, Recipe, completed, ended, num_receipts

__all__ = ["run"]

Change = Callable[[Path], None]


def run(ground: Ground, *, seed: int, times: int) -> list[Figure]:
    """Each change `times` times, after another number of shards. Returns: the figures."""
    draw = random.Random(f"meddling {seed}")
    lines = ground.recipe(rows=400, shard_size="8kB", workers=1)
    saved = dataclasses.replace(lines, dataset=_saved(lines.dataset, ground.fresh("saved")))
    cache = Path(os.environ["HF_HOME"], "datasets")
    changes: list[tuple[str, Recipe, Change, Path | None]] = [
        *((f"JSON lines: the source {name}", lines, change, lines.dataset) for name, change in _CHANGES.items()),
        *((f"saved dataset: the source {name}", saved, change, saved.dataset) for name, change in _CHANGES.items()),
        ("the cache of `datasets` vanishes", lines, _CHANGES["vanishes"], cache),
        ("the output folder vanishes", lines, _CHANGES["vanishes"], None),
    ]
    figures = []
    for name, recipe, change, place in changes:
        figure = Figure(section="meddling", claim=f"{name} in mid-job; the same, when it is back")
        for _ in range(times):
            after = draw.randint(1, ground.clean(recipe).num_shards - 2)
            problem = _meddle(ground, recipe, change, place, after=after)
            figure.check(problem and f"after {after} of {ground.clean(recipe).num_shards} shards: {problem}")
        figures.append(figure)
    return figures


def _meddle(ground: Ground, recipe: Recipe, change: Change, place: Path | None, *, after: int) -> str:
    """Changes `place`, or the output if it is None, in the middle of a build, and puts it back afterwards. Returns:
    what that build, or the next one, did not do as it should.
    """
    clean, output, backup = ground.clean(recipe), ground.fresh("meddled"), ground.fresh("backup")
    if place is not None:
        shutil.copytree(place, backup)
    running = processes.start(*recipe.arguments(output))
    if not _stop(running, output, receipts=after):
        return f"it was over too soon: {running.wait()}"
    change(output if place is None else place)
    running.signal(signal.SIGCONT)
    problem = ended(running.wait(), output, clean)
    if place is not None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.move(backup, place)
    problem = problem or completed(processes.run(*recipe.arguments(output)), output, clean)
    shutil.rmtree(output, ignore_errors=True)
    return problem


def _stop(running: processes.Running, output: Path, *, receipts: int) -> bool:
    """Stops the build when it has so many receipts. Returns: whether it was still there to be stopped."""
    while num_receipts(output) < receipts and not running.ended:
        time.sleep(0.002)
    running.signal(signal.SIGSTOP)
    return not running.ended


def _saved(corpus: Path, folder: Path) -> Path:
    """The corpus as `save_to_disk` writes it."""
    files = {path.stem: str(path) for path in corpus.iterdir()}
    datasets.disable_progress_bars()
    datasets.load_dataset("json", data_files=files).save_to_disk(folder)
    return folder


def _shrink(folder: Path) -> None:
    for path in _data_files(folder):
        os.truncate(path, path.stat().st_size // 2)


def _change(folder: Path) -> None:
    """Other letters, and as many: nothing but the content tells."""
    for path in _data_files(folder):
        path.write_bytes(path.read_bytes().replace(b" the ", b" eht "))


def _data_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".jsonl", ".arrow")]


_CHANGES: dict[str, Change] = {"vanishes": shutil.rmtree, "shrinks": _shrink, "changes": _change}
