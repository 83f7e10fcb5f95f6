"""Jobs: two builds in one folder at the same time never make a mixture.

The second one starts at a random moment of the first one's life. It may be the same build, one with other arguments, or
one with other arguments and --overwrite; or both overwrite a dataset that is there already. Each of the two either
succeeds or ends with a clear error, and in the end the folder holds, file by file, the clean build of one that
succeeded, and `verify` finds nothing wrong.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from pathlib import Path

from pipelines.prepare.audit import verify
from pipelines.prepare.dataset import own_files
from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import Ground, Recipe, difference

__all__ = ["run"]

# Half of the pairs start so close together that both may find the folder as it was.
_CLOSE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kind:
    """Two builds; `flags` by build; `there` is what the folder holds before, if it holds anything."""

    name: str
    recipes: tuple[Recipe, Recipe]
    flags: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    there: Recipe | None = None


def run(ground: Ground, *, pairs: int, seed: int, rows: int = 400) -> list[Figure]:
    """Starts `pairs` pairs of builds of each kind. Returns: a figure for each kind."""
    draw = random.Random(f"jobs {seed}")
    one = ground.recipe(rows=rows, shard_size="8kB")
    other = one.changed("--seed", "1")
    over = ("--overwrite",)
    kinds = [
        _Kind(name="with the same arguments", recipes=(one, one)),
        _Kind(name="with other arguments", recipes=(one, other)),
        _Kind(name="with other arguments and --overwrite", recipes=(one, other), flags=((), over)),
        _Kind(name="with --overwrite, over a dataset", recipes=(one, other), flags=(over, over), there=one),
    ]
    seconds = ground.seconds(one)
    return [_figure(ground, kind, pairs=pairs, seconds=seconds, draw=draw) for kind in kinds]


def _figure(ground: Ground, kind: _Kind, *, pairs: int, seconds: float, draw: random.Random) -> Figure:
    figure = Figure(section="jobs", claim=f"two builds at a time, {kind.name}: refused or completed, never mixed")
    succeeded = 0
    for _ in range(pairs):
        offset = draw.uniform(0, _CLOSE_SECONDS if draw.random() < 0.5 else seconds)
        problem, done = _race(ground, kind, offset=offset)
        figure.check(problem and f"the second after {offset:.3f} s: {problem}")
        succeeded += done
    figure.note = f"{succeeded} of {2 * pairs} builds completed, the others refused"
    return figure


def _race(ground: Ground, kind: _Kind, *, offset: float) -> tuple[str, int]:
    """Runs two builds. Returns: what is wrong in the end, and how many of them succeeded."""
    output = ground.fresh("shared")
    if kind.there is not None:
        shutil.copytree(ground.clean(kind.there).folder, output)
    running = []
    for recipe, flags in zip(kind.recipes, kind.flags, strict=True):
        running.append(processes.start(*recipe.arguments(output, *flags)))
        time.sleep(0 if len(running) == len(kind.recipes) else offset)
    outcomes = [each.wait() for each in running]
    done = [recipe for recipe, outcome in zip(kind.recipes, outcomes, strict=True) if outcome.status == 0]
    unclear = [str(outcome) for outcome in outcomes if outcome.status and not outcome.is_error]
    problem = f"no clear error: {unclear[0]}" if unclear else _mixture(ground, output, done)
    if problem:
        problem += f" (first: {outcomes[0]}; second: {outcomes[1]})"
    shutil.rmtree(output, ignore_errors=True)
    return problem, len(done)


def _mixture(ground: Ground, output: Path, done: list[Recipe]) -> str:
    """What is wrong with the folder, if it is not the clean build of a recipe that succeeded."""
    if not done:
        return "neither succeeded"
    found = [difference(output, ground.clean(recipe)) for recipe in done]
    if all(found):
        return found[-1]
    manifest = own_files.read_manifest(str(output))
    assert manifest is not None, "all files of a clean build are there"
    wrong = [each.file for each in verify.verify_files(str(output), manifest) if each.problem]
    return f"verify reports {', '.join(wrong[:3])}" if wrong else ""
