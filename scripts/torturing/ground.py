"""The ground on which everything happens: a corpus, a tokenizer, clean builds, and the comparison with them.

WORKDIR/
  hub/          the caches of the Hugging Face libraries
  tokenizer/    of the reviews example
  corpus-*/     sources, equal on every run and every machine
  clean-*/      builds to which nothing happened
  ...           what a section needs, deleted when it is done
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from scripts.torturing import processes
from scripts.torturing.processes import Outcome

__all__ = [
    "NAME",
    "Clean",
    "Ground",
    "Recipe",
    "completed",
    "contents",
    "difference",
    "early_manifest",
    "ended",
    "ingested",
    "num_ingested",
    "num_receipts",
    "strangers",
]

REVIEWS = processes.REPOSITORY / "examples" / "reviews"
NAME = "torture"
_LOCK = ".prep/lock"
_PARTIAL = ".partial-"
_ROWS_PER_GROUP = 20
# Rows of other formats than Parquet, as Arrow files; they go with the commit.
_INGESTED = re.compile(r"\.prep/rows-[^/]+/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The arguments of `build`, all but --output."""

    dataset: Path
    options: tuple[str, ...]

    def arguments(self, output: object, *more: str) -> list[str]:
        """The words after `prep-tfrecords`."""
        return ["build", str(self.dataset), "--output", str(output), "--json", *self.options, *more]

    def changed(self, *options: str) -> Recipe:
        """The same with further options; of an option that is given twice, the last counts."""
        return dataclasses.replace(self, options=(*self.options, *options))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clean:
    """A build to which nothing happened: its folder, the digests of its files by path, and its number of shards."""

    folder: Path
    files: Mapping[str, str]
    num_shards: int


class Ground:
    """The work folder of a run."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self._numbers = itertools.count()
        self._clean: dict[Recipe, Clean] = {}

    @functools.cached_property
    def tokenizer(self) -> Path:
        """A small WordPiece tokenizer."""
        folder = self.workdir / "tokenizer"
        if not (folder / "tokenizer.json").exists():
            script = REVIEWS / "train_tokenizer.py"
            subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True)
        return folder

    def recipe(
        self,
        *,
        rows: int,
        shard_size: str,
        max_length: int = 32,
        workers: int = 2,
        form: str = "jsonl",
        files: int = 1,
    ) -> Recipe:
        """A build of two splits with labels and a few rows that have to be rejected, from so many files each."""
        options = ["--tokenizer", self.tokenizer, "--label-column", "label", "--max-length", max_length]
        options += ["--shard-size", shard_size, "--max-error-rate", "0.1", "--name", NAME, "--workers", workers]
        return Recipe(dataset=self.corpus(rows, form=form, files=files), options=tuple(map(str, options)))

    def corpus(self, rows: int, *, form: str = "jsonl", files: int = 1) -> Path:
        """JSON lines or Parquet with `rows` rows to train on and a fifth of that to validate, in so many files each."""
        folder = self.workdir / f"corpus-{rows}-{form}-{files}"
        folder.mkdir(exist_ok=True)
        for split, count in (("train", rows), ("validation", rows // 5)):
            lines = _lines(count, seed=f"{split} {rows}")
            for number in range(files):
                name = split if files == 1 else f"{split}-{number:05d}"
                part = lines[number * count // files : (number + 1) * count // files]
                _write(part, folder / f"{name}.{form}")
        return folder

    def clean(self, recipe: Recipe) -> Clean:
        """The clean build of a recipe, made once."""
        if recipe not in self._clean:
            folder = self.fresh("clean")
            outcome = processes.run(*recipe.arguments(folder))
            if outcome.status:
                raise RuntimeError(f"the clean build failed: {outcome}")
            self._clean[recipe] = Clean(
                folder=folder,
                files=contents(folder),
                num_shards=outcome.summary["shards_made"],
            )
        return self._clean[recipe]

    def seconds(self, recipe: Recipe, *, plain: bool = False) -> float:
        """How long a build takes from start to end. Raises: RuntimeError if it is not like the clean one."""
        clean, output = self.clean(recipe), self.fresh("measured")
        began = time.perf_counter()
        outcome = processes.run(*recipe.arguments(output), plain=plain)
        took = time.perf_counter() - began
        if problem := completed(outcome, output, clean):
            raise RuntimeError(f"another clean build: {problem}")
        shutil.rmtree(output)
        return took

    def fresh(self, name: str) -> Path:
        """A path at which there is nothing yet."""
        folder = self.workdir / f"{name}-{next(self._numbers)}"
        shutil.rmtree(folder, ignore_errors=True)
        return folder


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` by path, hidden and half-written ones too, but not of the lock."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    found = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: hashlib.sha256(found[name].read_bytes()).hexdigest() for name in sorted(found) if name != _LOCK}


def difference(folder: Path, clean: Clean) -> str:
    """What distinguishes the files in `folder` from the clean build's; empty if nothing does."""
    found = contents(folder)
    kinds = {
        "missing": sorted(clean.files.keys() - found.keys()),
        "too many": sorted(found.keys() - clean.files.keys()),
        "different": sorted(name for name in found.keys() & clean.files.keys() if found[name] != clean.files[name]),
    }
    return "; ".join(f"{len(names)} {kind}: {', '.join(names[:3])}" for kind, names in kinds.items() if names)


def strangers(folder: Path, clean: Clean) -> str:
    """Files under their final names that a clean build does not have, or not with these bytes: what a process that
    stopped in the middle must never leave. Ingested rows are another matter, see `ingested`.
    """
    found = {name: digest for name, digest in contents(folder).items() if _PARTIAL not in name}
    wrong = [name for name, digest in found.items() if clean.files.get(name) != digest and not _INGESTED.match(name)]
    return f"{len(wrong)} files half-written or unknown: {', '.join(wrong[:3])}" if wrong else ""


def early_manifest(folder: Path, clean: Clean) -> str:
    """A manifest beside which files are missing; empty if there is none, or nothing is missing."""
    if not (folder / "manifest.json").exists():
        return ""
    missing = sorted(clean.files.keys() - contents(folder).keys())
    return f"a manifest, but {len(missing)} files are missing: {', '.join(missing[:3])}" if missing else ""


def completed(outcome: Outcome, folder: Path, clean: Clean) -> str:
    """What is wrong with a build that is to have succeeded."""
    return f"it failed: {outcome}" if outcome.status else difference(folder, clean)


def ended(outcome: Outcome, folder: Path, clean: Clean) -> str:
    """What is wrong with a build that may have failed, but then clearly, and leaving nothing that is wrong."""
    if outcome.status == 0:
        return difference(folder, clean)
    if not outcome.is_error:
        return f"no clear error: {outcome}"
    return early_manifest(folder, clean) or strangers(folder, clean)


def num_receipts(folder: Path) -> int:
    """How many shards a build has finished."""
    return len(list(folder.glob(".prep/*/*/receipt-*")))


def ingested(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of ingested rows that is there under its final name, and of every receipt of one."""
    return {name: digest for name, digest in contents(folder).items() if _INGESTED.match(name) and _PARTIAL not in name}


def num_ingested(folder: Path) -> int:
    """How many tasks of ingest are finished."""
    return len([path for path in folder.glob(".prep/rows-*/*.json") if _PARTIAL not in path.name])


def _write(lines: list[str], path: Path) -> None:
    if path.suffix == ".parquet":
        table = pa.Table.from_pylist([json.loads(line) for line in lines])
        pq.write_table(table, path, row_group_size=_ROWS_PER_GROUP)
    else:
        path.write_text("".join(lines), encoding="utf-8")


def _lines(rows: int, *, seed: str) -> list[str]:
    draw = random.Random(seed)
    texts = [json.loads(line)["text"] for line in (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    words = sorted({word for text in texts for word in text.split()})
    lines = []
    for row in range(rows):
        text = None if row % 40 == 39 else " ".join(draw.choices(words, k=draw.randint(3, 60)))
        lines.append(json.dumps({"text": text, "label": draw.choice(["negative", "positive"])}) + "\n")
    return lines
