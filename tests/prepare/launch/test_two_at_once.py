"""Two builds, or two estimates, at a time in one process: neither of them notices the other."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.launch import launcher
from pipelines.prepare.launch.launcher import BuildResult
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.progress import Counts, Progress
from tests import building
from tests.building import REVIEWS
from tests.prepare.launch.late_rows import FOUND_BY_A_SHARD, only_shards_find, small_sample
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import RowsRejectedError

__all__ = ["small_sample"]

# A thread that waits for another one: long on a busy machine, and not for ever.
SECONDS = 120


def padded(output: Path) -> PrepareConfig:
    """Reviews with their labels, rows of 32 tokens."""
    return PrepareConfig(
        source=SourceConfig(dataset=str(REVIEWS), label_column="label"),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=str(output), name="reviews", shard_bytes=6_000),
        layout=LayoutConfig(max_length=32),
        workers=2,
    )


def packed(output: Path, data: Path, zoo: Zoo) -> PrepareConfig:
    """Other rows, another tokenizer, several of them in a row of 64."""
    return PrepareConfig(
        source=SourceConfig(dataset=str(data)),
        tokenizer=TokenizerConfig(name=str(zoo.path("byte_bpe"))),
        output=OutputConfig(root=str(output), name="lines", shard_bytes=6_000),
        layout=LayoutConfig(name="pack", max_length=64),
        seed=3,
        workers=2,
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": f"line {number}: " + "some words of it " * (number % 7)} for number in range(900)]
    return building.source(tmp_path_factory.mktemp("lines") / "data", train=rows)


class Watch:
    """Sees that the builds are at work at the same time, and what each one's counters say at its end."""

    def __init__(self, builds: int) -> None:
        self.counts: dict[str, Counts] = {}
        self._begun = threading.Barrier(builds)

    def of(self, name: str) -> Callable[[list[ShardTask], Progress], contextlib.AbstractContextManager[None]]:
        @contextlib.contextmanager
        def watch(tasks: list[ShardTask], progress: Progress) -> Iterator[None]:
            assert progress.read() == Counts()
            self._begun.wait(SECONDS)
            try:
                yield
            finally:
                self.counts[name] = progress.read()

        return watch


def at_once(*builds: PrepareConfig) -> tuple[list[Future[BuildResult]], list[Counts]]:
    """What becomes of the builds, each on a thread of its own, and what their watchers counted."""
    watch = Watch(len(builds))
    with ThreadPoolExecutor(len(builds)) as pool:
        running = [pool.submit(launcher.build, each, watch=watch.of(each.output.root)) for each in builds]
    return running, [watch.counts[each.output.root] for each in builds]


def without_tokens(counts: Counts) -> Counts:
    """Without what a layout adds to the tokens of its rows, or cuts from them."""
    return dataclasses.replace(counts, tokens=0)


def counted(built: BuildResult) -> Counts:
    """What a watcher of all of a build should have counted, but for tokens."""
    splits = built.manifest.splits.values()
    return Counts(
        rows=sum(split.ledger.rows_in for split in splits),
        num_bytes=sum(split.num_bytes for split in splits),
        shards=built.shards_made,
    )


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Fails if what a process has one of is not as it was afterwards."""

    def state() -> list[Any]:
        levels = {name: log.level for name, log in logging.root.manager.loggerDict.items() if hasattr(log, "level")}
        return [sys.stderr, sys.stdout, threading.excepthook, [*warnings.filters], levels]

    before = state()
    yield
    after = state()
    after[-1] = {name: level for name, level in after[-1].items() if name in before[-1]}
    assert after == before


@pytest.mark.slow
def test_two_builds_at_once_make_what_each_makes_alone(tmp_path: Path, lines: Path, zoo: Zoo) -> None:
    (pad,), (pad_counts,) = at_once(padded(tmp_path / "pad"))
    (pack,), (pack_counts,) = at_once(packed(tmp_path / "pack", lines, zoo))
    alone = [pad.result(), pack.result()]
    with unchanged():
        running, counts = at_once(padded(tmp_path / "pad2"), packed(tmp_path / "pack2", lines, zoo))
    for name in ("pad", "pack"):
        assert building.files(tmp_path / f"{name}2") == building.files(tmp_path / name)
        assert len(building.shard_bytes(tmp_path / name)) >= 7
    assert [each.result().manifest for each in running] == [each.manifest for each in alone]
    assert [each.result().shards_made for each in running] == [each.shards_made for each in alone]
    assert counts == [pad_counts, pack_counts]
    assert [without_tokens(each) for each in counts] == [counted(each) for each in alone]


@pytest.mark.slow
@pytest.mark.usefixtures("small_sample")
def test_an_error_in_one_build_is_none_in_the_other(tmp_path: Path) -> None:
    data, _ = only_shards_find(tmp_path)
    strict = dataclasses.replace(
        padded(tmp_path / "strict"),
        source=SourceConfig(dataset=str(data)),
        layout=LayoutConfig(max_length=32, truncation="do_not_truncate"),
        shuffle=False,
    )
    with unchanged():
        (failed, made), (_, counts) = at_once(strict, padded(tmp_path / "out"))
    error = failed.exception()
    assert isinstance(error, RowsRejectedError)
    assert error.cause == FOUND_BY_A_SHARD
    assert not (tmp_path / "strict" / "manifest.json").exists()
    assert made.exception() is None
    assert without_tokens(counts) == counted(made.result())
    launcher.build(padded(tmp_path / "alone"))
    assert building.files(tmp_path / "out") == building.files(tmp_path / "alone")


@pytest.mark.slow
def test_two_builds_into_one_folder_are_one_too_many(tmp_path: Path) -> None:
    """The lock is the folder's, and not the process's."""
    begun, over = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def hold(_: list[ShardTask], __: Progress) -> Iterator[None]:
        begun.set()
        over.wait(SECONDS)
        yield

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(launcher.build, padded(tmp_path / "out"), watch=hold)
        assert begun.wait(SECONDS)
        with pytest.raises(Exception, match="another job is at work in this folder"):
            launcher.build(padded(tmp_path / "out"))
        over.set()
    assert first.result().shards_made == len(building.shard_bytes(tmp_path / "out"))
