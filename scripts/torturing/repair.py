"""Repair: `verify --repair` makes again what is damaged, byte for byte, and touches nothing else.

Each time a copy of a finished dataset is damaged at random: some shards flipped, cut, deleted or exchanged, an index, a
list of rejected rows, the tokenizer, the files for TFDS. Afterwards all files are those of the clean build, the sound
shards are the very files that they were, and what was made again has been said. With a source that has changed, nothing
may be written at all; from one that was moved, --repair --source does the same.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from scripts.torturing import processes
from scripts.torturing.figures import Figure
from scripts.torturing.ground import NAME, Ground, Recipe, completed, contents

__all__ = ["run"]

# Every so many rounds the source is first changed, or was moved.
_CHANGED_EVERY = 3
_MOVED_EVERY = 4
_ALSO_DAMAGED = 0.4
_WAYS = ("flipped", "cut", "emptied", "deleted")


def run(ground: Ground, *, repairs: int, seed: int, rows: int = 400) -> list[Figure]:
    """Damages and repairs `repairs` times. Returns: the figures of three claims."""
    draw = random.Random(f"repair {seed}")
    plain = ground.recipe(rows=rows, shard_size="8kB")
    mended = Figure(section="repair", claim="--repair: all files as in a clean build, sound shards untouched")
    refused = Figure(section="repair", claim="--repair with a changed source: a clear error, and nothing is written")
    moved = Figure(section="repair", claim="--repair --source, of a source that was moved: all files the same too")
    num_damaged = 0
    for number in range(1, repairs + 1):
        recipe = plain.changed("--compression", "gzip") if number % 2 == 0 else plain
        folder = ground.fresh("damaged")
        shutil.copytree(ground.clean(recipe).folder, folder)
        damaged = _damage(folder, draw)
        num_damaged += len(damaged)
        told = f"{recipe.options[-1]}, {', '.join(f'{name} {how}' for name, how in sorted(damaged.items()))}: "
        if number % _CHANGED_EVERY == 0:
            problem = _refused(recipe, folder)
            refused.check(problem and told + problem)
        figure = moved if number % _MOVED_EVERY == 0 else mended
        problem = _mended(ground, recipe, folder, damaged, move=figure is moved)
        figure.check(problem and told + problem)
        shutil.rmtree(folder)
    mended.note = f"{num_damaged} files damaged in {repairs} datasets, every second one compressed"
    return [mended, refused, moved]


def _damage(folder: Path, draw: random.Random) -> dict[str, str]:
    """Damages one to four shards, or exchanges two, and perhaps other files. Returns: what was done, by path."""
    shards = sorted(folder.glob("*.tfrecord*"))
    damaged = {path.name: _spoil(path, draw) for path in draw.sample(shards, draw.randint(1, min(4, len(shards))))}
    sound = [path for path in shards if path.name not in damaged]
    if len(sound) > 1 and draw.random() < _ALSO_DAMAGED:
        damaged.update(_exchange(*draw.sample(sound, 2)))
    beside = [
        *draw.sample(sorted(folder.glob("index/*")), min(2, len(list(folder.glob("index/*"))))),
        *draw.sample(sorted(folder.glob("rejected/*")), 1),
        *draw.sample(sorted(folder.glob("tokenizer/*")), 1),
        *(path for path in (folder / "dataset_info.json", folder / "features.json") if path.exists()),
    ]
    for path in beside:
        if draw.random() < _ALSO_DAMAGED:
            # Of the rejected rows only their reasons are counted elsewhere: a flip in a row's text is not damage.
            ways = ("cut", "deleted") if path.parent.name == "rejected" else _WAYS
            damaged[path.relative_to(folder).as_posix()] = _spoil(path, draw, ways=ways)
    return damaged


def _spoil(path: Path, draw: random.Random, *, ways: tuple[str, ...] = _WAYS) -> str:
    content = path.read_bytes()
    way = draw.choice(ways)
    if way == "deleted":
        path.unlink()
    elif way == "emptied":
        path.write_bytes(b"")
    elif way == "cut":
        path.write_bytes(content[: draw.randrange(len(content) // 2)])
    else:
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
    return way


def _exchange(one: Path, other: Path) -> dict[str, str]:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return {one.name: "exchanged", other.name: "exchanged"}


def _mended(ground: Ground, recipe: Recipe, folder: Path, damaged: Mapping[str, str], *, move: bool) -> str:
    """Repairs, the source having been moved or not. Returns: what is wrong afterwards."""
    before = _sound_shards(folder, damaged)
    elsewhere = ground.fresh("moved")
    if move:
        shutil.move(recipe.dataset, elsewhere)
    try:
        outcome = processes.run("verify", folder, "--repair", *(("--source", elsewhere) if move else ()))
    finally:
        if move:
            shutil.move(elsewhere, recipe.dataset)
    if problem := completed(outcome, folder, ground.clean(recipe)):
        return problem
    if touched := [name for name, inode in before.items() if (folder / name).stat().st_ino != inode]:
        return f"sound, but written again: {', '.join(touched)}"
    said = re.findall(r"^made (.+) again from ", outcome.out + outcome.err, flags=re.MULTILINE)
    unsaid = [name for name in damaged if not any(_told_as(name) in each for each in said)]
    return f"nothing was said of {', '.join(unsaid)}" if unsaid else ""


def _refused(recipe: Recipe, folder: Path) -> str:
    """Tries to repair from a source in which one letter is another. Returns: what is wrong afterwards."""
    before = contents(folder)
    path = recipe.dataset / "train.jsonl"
    text, stat = path.read_bytes(), path.stat()
    path.write_bytes(text.replace(b" the ", b" thy ", 1))
    outcome = processes.run("verify", folder, "--repair")
    path.write_bytes(text)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if not (outcome.status == 1 and outcome.is_error):
        return f"no clear error: {outcome}"
    return "" if contents(folder) == before else "files were changed"


def _sound_shards(folder: Path, damaged: Mapping[str, str]) -> dict[str, int]:
    """Inodes by name: a file that is written again is another file. Rejected rows come with their shard, an index
    without.
    """
    remade = [_told_as(name) for name in damaged if not name.startswith("index/")]
    shards = (path for path in folder.glob("*.tfrecord*") if not any(path.name.startswith(name) for name in remade))
    return {path.name: path.stat().st_ino for path in shards}


def _told_as(name: str) -> str:
    """What is in the line that says of a file that it was made again: its own name, or that of what it belongs to."""
    folder, _, rest = name.rpartition("/")
    if folder == "rejected":  # train-00003.jsonl belongs to the shard NAME-train-00003-of-00012
        return f"{NAME}-{rest.removesuffix('.jsonl')}-of-"
    return rest.removesuffix(".offsets") if folder == "index" else folder or name
