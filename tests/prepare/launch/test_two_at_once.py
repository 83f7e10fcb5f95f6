"""Two builds, or two estimates, at a time in one process: neither of them notices the other."""

import contextlib
import dataclasses
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.launch import launcher
from pipelines.prepare.launch.built import Built
from pipelines.prepare.options.config import LayoutConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.process.progress import Counts, Progress
from tests import building
from tests.building import REVIEWS
from tests.support import limits
from tests.support.commits import request
from tests.support.tokenizers_zoo import Zoo


def padded(output: Path) -> PrepareConfig:
    """Reviews with their labels, rows of 32 tokens."""
    return dataclasses.replace(request(str(output)), workers=2)


def packed(output: Path, zoo: Zoo) -> PrepareConfig:
    """Other rows, another tokenizer, several of them in a row of 64."""
    source = SourceConfig(dataset=str(REVIEWS / "train.jsonl"))
    tokenizer = TokenizerConfig(name=str(zoo.path("byte_bpe")))
    layout = LayoutConfig(name="pack", max_length=64)
    return dataclasses.replace(padded(output), source=source, tokenizer=tokenizer, layout=layout, seed=3)


def at_once(*builds: PrepareConfig) -> tuple[list[Built], list[Counts]]:
    """Return the results and counts of builds that run at the same time, each in a thread."""
    begun, counts = threading.Barrier(len(builds)), dict[str, Counts]()

    def run(config: PrepareConfig) -> Built:
        @contextlib.contextmanager
        def watch(_: str, num_rows: int, progress: Progress) -> Iterator[None]:
            assert progress.read() == Counts()
            begun.wait(limits.PROCESS)
            yield
            counts[config.output.root] = progress.read()

        return launcher.build(config, watch=watch)

    with ThreadPoolExecutor(len(builds)) as pool:
        made = list(pool.map(run, builds))
    return made, [counts[config.output.root] for config in builds]


def of_process(loggers: Sequence[str]) -> list[Any]:
    """State of the whole process."""
    levels = [logging.getLogger(name).level for name in loggers]
    return [sys.stderr, sys.stdout, threading.excepthook, [*warnings.filters], levels]


@pytest.mark.slow
def test_two_builds_at_once_make_what_each_makes_alone(tmp_path: Path, zoo: Zoo) -> None:
    alone = [at_once(padded(tmp_path / "pad")), at_once(packed(tmp_path / "pack", zoo))]
    before_both = of_process(loggers := [*logging.root.manager.loggerDict])
    made, counts = at_once(padded(tmp_path / "pad2"), packed(tmp_path / "pack2", zoo))
    assert of_process(loggers) == before_both
    for name in ("pad", "pack"):
        assert building.files(tmp_path / f"{name}2") == building.files(tmp_path / name)
        assert len(building.shard_bytes(tmp_path / name)) > 2
    for built, counted, ((before,), (wanted,)) in zip(made, counts, alone, strict=True):
        assert (built.manifest, built.shards_made, counted) == (before.manifest, before.shards_made, wanted)
        splits = built.manifest.splits.values()
        assert counted.rows == sum(split.ledger.rows_in for split in splits)
        assert counted.num_bytes == sum(split.num_bytes for split in splits)
        assert counted.shards == built.shards_made
