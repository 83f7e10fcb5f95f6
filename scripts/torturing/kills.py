"""Kills: a build that is killed at any moment, again and again, ends as if nothing had happened.

One round is a new folder, one to three SIGKILLs in a row, and then the same command to its end. Half of the kills come
at a time drawn from the length of a whole run; the other half wait for a certain number of receipts first, since the
commit takes a few milliseconds that no clock would hit. In every third round `datasets` has to prepare the source anew.

After each kill: no manifest unless everything is there, and under its final name no file that a whole build would not
have, byte for byte. After each round: exactly the files of the clean build.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import time
from pathlib import Path

from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Clean, Ground, Recipe, completed, early_manifest, num_receipts, strangers

__all__ = ["run"]

# Of kills, those at a process that has its imports still before it, which is slow and leaves nothing behind.
_PLAIN_SHARE = 0.04
# Of kills that wait for receipts, those that wait for the last one.
_COMMIT_SHARE = 0.3
# How long after the awaited receipt: a shard of this size takes about as long.
_LINGER_SECONDS = 0.04
_POLL_SECONDS = 0.002
_PHASES = ("imports", "opening and planning", "writing the plan", "shards", "commit", "the last moments")
_SPLITS = 2


def run(ground: Ground, *, kills: int, seed: int, rows: int = 400) -> list[Figure]:
    """Kills builds `kills` times. Returns: the figures of the three claims."""
    recipe = ground.recipe(rows=rows, shard_size="8kB")
    clean = ground.clean(recipe)
    manifest = Figure(section="kills", claim="after a kill: no manifest unless all is there")
    whole = Figure(section="kills", claim="after a kill: no half-written file under its final name")
    same = Figure(section="kills", claim="run again: all files as in a clean build")
    rounds = _Rounds(ground, recipe, clean, seed=seed)
    while manifest.tried < kills:
        output = rounds.begin()
        for _ in range(min(rounds.strikes(), kills - manifest.tried)):
            if not rounds.strike(output):
                break
            manifest.check(rounds.told(early_manifest(output, clean)))
            whole.check(rounds.told(strangers(output, clean)))
        same.check(rounds.told(rounds.finish(output)))
        shutil.rmtree(output, ignore_errors=True)
    counts = ", ".join(f"{rounds.phases[phase]} in {phase}" for phase in _PHASES if rounds.phases[phase])
    manifest.note = f"{counts}; {rounds.again} of a resumed build"
    same.note = f"{clean.num_shards} shards each, {rounds.shards_kept} in all kept by resumes"
    return [manifest, whole, same]


class _Rounds:
    """What chance decides, and what is counted along the way."""

    def __init__(self, ground: Ground, recipe: Recipe, clean: Clean, *, seed: int) -> None:
        self._ground, self._recipe, self._clean = ground, recipe, clean
        self._draw = random.Random(f"kills {seed}")
        self._seconds = {plain: ground.seconds(recipe, plain=plain) for plain in (False, True)}
        self.number = 0
        self.again = 0
        self.shards_kept = 0
        self.phases: collections.Counter[str] = collections.Counter()
        self._struck: list[str] = []

    def begin(self) -> Path:
        """A folder for the next round."""
        self.number += 1
        self._struck = []
        if self.number % 3 == 0:
            for path in self._recipe.dataset.iterdir():
                os.utime(path, ns=(self.number * 10**9, self.number * 10**9))
        return self._ground.fresh("killed")

    def strikes(self) -> int:
        """How many kills in a row."""
        return self._draw.choices((1, 2, 3), weights=(6, 3, 1))[0]

    def strike(self, output: Path) -> bool:
        """Runs the build and kills it. Returns: whether it was still there to be killed."""
        plain = self._draw.random() < _PLAIN_SHARE
        running = processes.start(*self._recipe.arguments(output), plain=plain)
        if plain or self._draw.random() < 0.5:
            self._wait(running, seconds=self._draw.uniform(0, self._seconds[plain]))
        else:
            wanted = self._aim(output)
            while num_receipts(output) < wanted and not running.ended:
                time.sleep(_POLL_SECONDS)
            self._wait(running, seconds=self._draw.uniform(0, _LINGER_SECONDS))
        running.kill()
        if running.wait().status != -signal.SIGKILL:
            return False
        phase = self._phase(output, plain=plain)
        self.again += bool(self._struck)
        self.phases[phase] += 1
        self._struck.append(phase)
        return True

    def told(self, problem: str) -> str:
        """The problem, if it is one, and how it came about."""
        return problem and f"round {self.number}, killed in {', '.join(self._struck) or 'no phase'}: {problem}"

    def finish(self, output: Path) -> str:
        """Runs the build to its end. Returns: what is wrong with its files."""
        outcome = processes.run(*self._recipe.arguments(output))
        if problem := completed(outcome, output, self._clean):
            return problem
        self.shards_kept += outcome.summary["shards_kept"]
        return ""

    def _aim(self, output: Path) -> int:
        """The number of receipts to wait for; all of them more often than any other, to hit the commit."""
        there, last = num_receipts(output), self._clean.num_shards
        return last if self._draw.random() < _COMMIT_SHARE else self._draw.randint(min(there + 1, last), last)

    def _phase(self, output: Path, *, plain: bool) -> str:
        if (output / "manifest.json").exists():
            return "the last moments"
        if not list(output.glob(".prep/*/job.json")):
            return "imports" if plain else "opening and planning"
        if len(list(output.glob(".prep/*/*/plan.json"))) < _SPLITS:
            return "writing the plan"
        return "shards" if num_receipts(output) < self._clean.num_shards else "commit"

    @staticmethod
    def _wait(running: processes.Running, *, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline and not running.ended:
            time.sleep(_POLL_SECONDS)
