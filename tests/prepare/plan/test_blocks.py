"""Blocks cover the ranges, stay within groups, and say what their rows will give; for that few groups are read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from pipelines.prepare.launch import split_plans
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.plan import sample_rows
from pipelines.prepare.plan.planning import Blocks, block_rows, plan_split
from pipelines.prepare.sources.parquet.groups import cover
from pipelines.prepare.sources.rows.reading import SplitSource
from tests.prepare import stored
from tests.prepare.stored import Work
from tests.support import seams
from tests.support.texts import english, foreign
from tests.support.tokenizers_zoo import Zoo

ROWS = 8000

Texts = list[str | None]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, sample_bytes=80_000, sample_rows=1024)


def uniform(rng: np.random.Generator) -> Texts:
    return [english(words, rng) for words in np.maximum(1, rng.lognormal(2.5, 0.8, ROWS)).astype(int)]


def by_length(rng: np.random.Generator) -> Texts:
    return sorted(uniform(rng), key=lambda text: len(text or ""))


def languages(rng: np.random.Generator) -> Texts:
    return [english(15, rng) if row // 1000 % 2 else foreign(40, rng) for row in range(ROWS)]


def long_documents(rng: np.random.Generator) -> Texts:
    return [english(words, rng) for words in np.maximum(1, rng.lognormal(4.5, 1.0, ROWS // 8)).astype(int)]


def with_nulls(rng: np.random.Generator) -> Texts:
    return [None if row < ROWS // 2 and row % 2 else text for row, text in enumerate(uniform(rng))]


def repeated(rng: np.random.Generator) -> Texts:
    pool = [english(30, rng) for _ in range(50)]
    return [pool[index] for index in rng.integers(0, len(pool), ROWS)]


def made(folder: Path, zoo: Zoo, rows: Sequence[str | None], *, group_rows: int = 50, **options: Any) -> Work:
    source = stored.parquet(folder, {"text": list(rows)}, group_rows=group_rows, files=3)
    return stored.work(zoo.path("wordpiece_uncased"), source, **options)


def forecast(work: Work, *, block_rows: int = 1000) -> Blocks:
    return split_plans.forecast(work.job.spec, work.splits["train"], work.measure(), block_rows=block_rows)


def spans_of(blocks: Blocks) -> list[tuple[int, int]]:
    return list(zip(blocks.starts.tolist(), blocks.stops.tolist(), strict=True))


@pytest.mark.usefixtures("few")
def test_blocks_are_parts_of_groups_and_cover_the_ranges(tmp_path: Path, zoo: Zoo) -> None:
    ranges = [(4000, 7777), (100, 2345)]
    source = stored.parquet(tmp_path, {"text": uniform(np.random.default_rng(0))}, group_rows=50, ranges=ranges)
    work = stored.work(zoo.path("wordpiece_uncased"), source)
    blocks = forecast(work, block_rows=20)
    assert not next(sample_rows.choices(work.job.spec, source)).whole
    assert [row for span in spans_of(blocks) for row in range(*span)] == [*range(4000, 7777), *range(100, 2345)]
    assert max(stop - start for start, stop in spans_of(blocks)) <= 30
    assert all(start // 50 == (stop - 1) // 50 for start, stop in spans_of(blocks))


def test_a_split_that_is_read_whole_has_blocks_by_the_length_of_each_row(tmp_path: Path, zoo: Zoo) -> None:
    rows = ["a " * 5] * 90 + ["a " * 400] + ["a " * 5] * 9
    blocks = forecast(made(tmp_path, zoo, rows, layout=LayoutConfig(name="concat", max_length=64)), block_rows=30)
    assert (90, 91) in spans_of(blocks)  # the long row is a separate block


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("corpus", "name", "rel"),
    [
        (uniform, "concat", 0.02),
        (by_length, "concat", 0.03),
        (languages, "concat", 0.1),  # a handful of groups has each of two languages by chance
        (long_documents, "concat", 0.06),
        (with_nulls, "pad", 0.03),
        (repeated, "pad", 0.03),
    ],
)
def test_a_few_groups_foretell_the_whole(
    tmp_path: Path, zoo: Zoo, corpus: Callable[[np.random.Generator], Texts], rel: float, name: Any
) -> None:
    work = made(tmp_path, zoo, corpus(np.random.default_rng(3)), layout=LayoutConfig(name=name, max_length=32))
    assert not next(sample_rows.choices(work.job.spec, work.splits["train"])).whole
    plan, _ = stored.plan(work, targets=5.0)
    sizes = stored.shard_sizes(work, plan)
    assert plan.predicted_bytes == pytest.approx(sizes.sum(), rel=rel)
    assert np.abs(sizes / sizes.mean() - 1).max() < 0.1


@pytest.mark.usefixtures("few")
def test_a_sample_of_few_groups_reads_no_others(tmp_path: Path, zoo: Zoo) -> None:
    work = made(tmp_path, zoo, uniform(np.random.default_rng(0)))
    with mock.patch.object(SplitSource, "read", autospec=True, side_effect=SplitSource.read) as reads:
        forecast(work)
    groups = work.splits["train"].groups
    touched = np.unique(cover(groups.ends, np.concatenate([call.args[1] for call in reads.call_args_list])).groups)
    assert groups.stored_bytes[touched].sum() <= 80_000


@pytest.mark.parametrize("row_bytes", [600.0, 1650.0])
def test_hardly_any_row_group_is_decoded_for_two_shards(row_bytes: float) -> None:
    groups, rows, shard_bytes = 400, 2000, 10**8
    ends = rows * np.arange(1, groups + 1)
    whole = [(0, groups * rows)]
    covered, predicted = cover(ends, whole), np.full(groups, rows * row_bytes)
    most = block_rows(row_bytes=row_bytes, shard_bytes=shard_bytes)
    cut = split_plans._cut_groups(covered, predicted, rows=most, row_bytes=row_bytes)
    split: Any = SimpleNamespace(name="train", source_split="train", ranges=whole, tasks_before=0)
    plan = plan_split(cut, split, shard_bytes=shard_bytes, seed=0, shuffle=True)
    decoded = sum(
        len(np.unique(cover(ends, plan.spans_of(index, index + 1)).groups)) for index in range(plan.num_shards)
    )
    assert plan.num_shards > 4
    assert decoded <= groups + plan.num_shards
