"""A build as a process with a home of its own, and what it left: its dataset, and how much it kept in that home."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.benchmarks import measure, tokenizer_training

__all__ = [
    "BuildResult",
    "Job",
    "build",
    "built_digest",
    "dataset_digest",
    "home_environment",
    "local_manifest",
    "tokenizer",
]

_SAMPLE_SECONDS = 0.05
_SHOWN_LINES = 4
# What differs between places by itself: how the source and its files are known there, and what follows from that.
_OF_THE_SOURCE = ("fingerprint", "sha256", "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The command line of a build but for its output: `source` is DATASET, `beam` what comes after `--`."""

    source: str
    tokenizer: Path
    shard_size: str = "16MB"
    options: tuple[str, ...] = ()
    beam: tuple[str, ...] = ()

    def words(self, output: object) -> list[str]:
        """The words that start it as a process."""
        options = ["--output", str(output), "--tokenizer", str(self.tokenizer), "--shard-size", self.shard_size]
        options += ["--layout", "concat", "--max-length", "512", "--name", "proof", "--json", *self.options]
        return [sys.executable, "-m", "pipelines.cli", "build", self.source, *options, "--", *self.beam]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What a build left. `failure` is empty if it succeeded; then `run` is there. `home_bytes` is the most that lay in
    its home at one time, as far as it was looked at (every twentieth of a second).
    """

    run: measure.Run | None
    failure: str
    home_bytes: int


def build(job: Job, output: object, *, home: Path, env: Mapping[str, str] | None = None) -> BuildResult:
    """Run a job with its caches, temporary files and home in the new folder `home`."""
    environment = {**home_environment(home), **(env or {})}
    with _watched(home) as most:
        try:
            run, failure = measure.run(job.words(output), env=environment), ""
        except measure.CommandFailedError as error:
            run, failure = None, "\n".join(str(error).splitlines()[-_SHOWN_LINES:])
    return BuildResult(run=run, failure=failure, home_bytes=most[0])


def built_digest(job: Job, output: Path, *, home: Path) -> str:
    """The digest of a job's dataset, made on this machine in the launcher's process. Removes what it made.

    Raises: RuntimeError if it fails.
    """
    built = build(job, output, home=home)
    if built.failure:
        raise RuntimeError(built.failure)
    digest = dataset_digest(local_manifest(output))
    shutil.rmtree(output)
    return digest


def home_environment(home: Path) -> dict[str, str]:
    """Environment variables that put everything a process keeps for itself into `home`, which is made."""
    places = {"HOME": "home", "TMPDIR": "tmp", "HF_HOME": "hf", "XDG_CACHE_HOME": "cache"}
    for name in places.values():
        (home / name).mkdir(parents=True, exist_ok=True)
    # Other variables of the libraries would lead out of it again.
    caches = {"HF_DATASETS_CACHE": "hf/datasets", "HF_HUB_CACHE": "hf/hub", "HF_MODULES_CACHE": "hf/modules"}
    kept = {name: str(home / place) for name, place in {**places, **caches}.items()}
    # Offline, `datasets` would open no address at all.
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "NO_PROXY": "127.0.0.1,localhost"}
    return {**kept, **quiet, "HF_HUB_OFFLINE": "0"}


def tokenizer(workdir: Path) -> Path:
    """A WordPiece tokenizer of the corpus."""
    return tokenizer_training.trained(workdir, "wordpiece", sample_bytes=2_000_000)


def local_manifest(output: Path) -> dict[str, Any]:
    """The manifest of a local dataset."""
    found: dict[str, Any] = json.loads((output / "manifest.json").read_bytes())
    return found


def dataset_digest(manifest: Mapping[str, Any]) -> str:
    """What a manifest says of the dataset, shards and their digests foremost, but not of the source."""
    kept = {name: value for name, value in manifest.items() if name not in _OF_THE_SOURCE}
    kept["options"] = {name: value for name, value in manifest["options"].items() if name != "source"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def _watched(folder: Path) -> Iterator[list[int]]:
    """A list of one number, the most bytes that lay in `folder` at one time."""
    most, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            most[0] = max(most[0], _bytes_in(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
        most[0] = max(most[0], _bytes_in(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it went while we looked
                total += os.lstat(os.path.join(place, name)).st_size
    return total
