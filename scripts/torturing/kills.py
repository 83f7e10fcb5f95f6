"""Kills: a build that is killed at any moment, again and again, ends as if nothing had happened.

One round is a new folder, one to three SIGKILLs in a row, and then the same command to its end, of a source of JSON
lines, whose rows are ingested, and of one of Parquet, whose rows are read where they lie. Some of the kills come at a
time drawn from the length of a whole run. The others wait first for what the build leaves as it goes, receipts of
ingested files and of shards, since most stages take a few milliseconds that no clock would hit.

After each kill: no manifest unless everything is there, and under its final name no file that a whole build would not
have, byte for byte; and of ingested files those bytes that they have after any other kill. After each round: exactly
the files of the clean build.
"""

from __future__ import annotations

import collections
import functools
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import (
    Clean,
    Ground,
    Recipe,
    completed,
    early_manifest,
    ingested,
    num_ingested,
    num_receipts,
    strangers,
)

__all__ = ["run"]

# Of kills, those at a process that has its imports still before it, which is slow and leaves nothing behind.
_PLAIN_SHARE = 0.04
# Of the other kills, those that come at any time, that wait for ingested files, for all of them, and for shards.
_AIMS = {"any time": 0.35, "ingest": 0.2, "plan": 0.15, "shards": 0.3}
# Of kills that wait for receipts of shards, those that wait for the last one.
_COMMIT_SHARE = 0.3
# How long after what was awaited: an ingested file or a shard of this size takes about as long, and planning longer.
_LINGER_SECONDS = {"ingest": 0.04, "plan": 0.2, "shards": 0.04}
_POLL_SECONDS = 0.002
_STAGES = ("imports", "opening", "ingest", "plan", "shards", "commit", "the last moments")
_FORMS = ("jsonl", "parquet")
_SPLITS = 2
_FILES = 4


def run(ground: Ground, *, kills: int, seed: int, rows: int = 400) -> list[Figure]:
    """Kills builds `kills` times, half of them of each form of the source. Returns: the figures of the claims."""
    figures = []
    for number, form in enumerate(_FORMS):
        share = (kills + 1 - number) // len(_FORMS)
        figures += _kill(ground, form, kills=max(1, share), seed=seed, rows=rows)
    return figures


def _kill(ground: Ground, form: str, *, kills: int, seed: int, rows: int) -> list[Figure]:
    recipe = ground.recipe(rows=rows, shard_size="8kB", form=form, files=_FILES)
    clean = ground.clean(recipe)
    manifest = Figure(section="kills", claim=f"{form}, after a kill: no manifest unless all is there")
    whole = Figure(section="kills", claim=f"{form}, after a kill: no half-written file under its final name")
    same = Figure(section="kills", claim=f"{form}, run again: all files as in a clean build")
    rounds = _Rounds(ground, recipe, clean, seed=f"{form} {seed}")
    while manifest.tried < kills:
        output = rounds.begin()
        for _ in range(min(rounds.strikes(), kills - manifest.tried)):
            if not rounds.strike(output):
                break
            manifest.check(rounds.told(early_manifest(output, clean)))
            whole.check(rounds.told(strangers(output, clean) or rounds.strange_rows(output)))
        same.check(rounds.told(rounds.finish(output)))
        shutil.rmtree(output, ignore_errors=True)
    counts = ", ".join(f"{rounds.stages[stage]} in {stage}" for stage in _STAGES if rounds.stages[stage])
    manifest.note = f"{counts}; {rounds.again} of a resumed build"
    whole.note = f"{len(rounds.rows)} files of ingested rows seen, and receipts"
    same.note = f"{clean.num_shards} shards each, {rounds.shards_kept} in all kept by resumes"
    return [manifest, whole, same]


class _Rounds:
    """What chance decides, and what is counted along the way."""

    def __init__(self, ground: Ground, recipe: Recipe, clean: Clean, *, seed: str) -> None:
        self._ground, self._recipe, self._clean = ground, recipe, clean
        self._draw = random.Random(f"kills {seed}")
        # Measured when it is first needed: few kills, or none, come at a plain process.
        self._seconds = functools.cache(lambda plain: ground.seconds(recipe, plain=plain))
        self.number = 0
        self.again = 0
        self.shards_kept = 0
        self.stages: collections.Counter[str] = collections.Counter()
        self.rows: dict[str, str] = {}
        self._num_files = len(list(recipe.dataset.iterdir()))
        self._is_ingested = not list(recipe.dataset.glob("*.parquet"))
        self._struck: list[str] = []

    def begin(self) -> Path:
        """A folder for the next round."""
        self.number += 1
        self._struck = []
        return self._ground.fresh("killed")

    def strikes(self) -> int:
        """How many kills in a row."""
        return self._draw.choices((1, 2, 3), weights=(6, 3, 1))[0]

    def strike(self, output: Path) -> bool:
        """Runs the build and kills it. Returns: whether it was still there to be killed."""
        plain = self._draw.random() < _PLAIN_SHARE
        running = processes.start(*self._recipe.arguments(output), plain=plain)
        aim = "any time" if plain else self._draw.choices(list(_AIMS), weights=list(_AIMS.values()))[0]
        if aim == "any time":
            self._wait(running, seconds=self._draw.uniform(0, self._seconds(plain)))
        else:
            reached = self._aim(aim, output)
            while not reached() and not running.ended:
                time.sleep(_POLL_SECONDS)
            self._wait(running, seconds=self._draw.uniform(0, _LINGER_SECONDS[aim]))
        running.kill()
        if running.wait().status != -signal.SIGKILL:
            return False
        stage = self._stage(output, plain=plain)
        self.again += bool(self._struck)
        self.stages[stage] += 1
        self._struck.append(stage)
        return True

    def told(self, problem: str) -> str:
        """The problem, if it is one, and how it came about."""
        return problem and f"round {self.number}, killed in {', '.join(self._struck) or 'no stage'}: {problem}"

    def finish(self, output: Path) -> str:
        """Runs the build to its end. Returns: what is wrong with its files."""
        outcome = processes.run(*self._recipe.arguments(output))
        if problem := completed(outcome, output, self._clean):
            return problem
        self.shards_kept += outcome.summary["shards_kept"]
        return ""

    def strange_rows(self, output: Path) -> str:
        """Ingested files with other bytes than they had after an earlier kill, which may have been of another round."""
        found = ingested(output)
        wrong = [name for name, digest in found.items() if self.rows.setdefault(name, digest) != digest]
        return f"{len(wrong)} ingested files with other bytes than before: {', '.join(wrong[:3])}" if wrong else ""

    def _aim(self, aim: str, output: Path) -> Callable[[], bool]:
        """Whether the build has come as far as is drawn now, or further."""
        if aim == "shards":
            there, last = num_receipts(output), self._clean.num_shards
            # All of them more often than any other, to hit the commit.
            wanted = last if self._draw.random() < _COMMIT_SHARE else self._draw.randint(min(there + 1, last), last)
            return lambda: num_receipts(output) >= wanted
        before = num_receipts(output)
        if not self._is_ingested:
            sign = ".prep/*/job.json" if aim == "plan" else ".prep"
            return lambda: bool(list(output.glob(sign))) or num_receipts(output) > before
        files = self._num_files if aim == "plan" else self._draw.randint(1, self._num_files)
        return lambda: num_ingested(output) >= files or num_receipts(output) > before

    def _stage(self, output: Path, *, plain: bool) -> str:
        """Where the build was, by what it has left."""
        if (output / "manifest.json").exists():
            return "the last moments"
        planned = {path.parent for path in output.glob(".prep/*/*/plan.json")}
        if len(planned) == _SPLITS:
            return "shards" if num_receipts(output) < self._clean.num_shards else "commit"
        if list(output.glob(".prep/rows-*")):
            return "ingest" if num_ingested(output) < self._num_files else "plan"
        if planned or list(output.glob(".prep/*/job.json")):
            return "plan"
        return "imports" if plain else "opening"

    @staticmethod
    def _wait(running: processes.Running, *, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline and not running.ended:
            time.sleep(_POLL_SECONDS)
