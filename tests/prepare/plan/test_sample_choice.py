"""A sample is small, comes from all parts of the split, and depends only on groups and seed."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.plan import sample_rows
from pipelines.prepare.plan.sample_rows import SampleChoice
from pipelines.prepare.sources.parquet.groups import Groups, cover
from pipelines.prepare.sources.resolve.data_files import DataFile

KB, MB = 1 << 10, 1 << 20


def split_of(*, groups: int, rows: int = 1000, stored: int = 100 * KB, ranges: Any = None, **reader: Any) -> Any:
    total = groups * rows
    ranges = ranges or ((0, total),)
    return SimpleNamespace(
        name="train",
        groups=Groups(
            files=(DataFile(path="a", size=1),),
            num_rows=np.full(groups, rows),
            file=np.zeros(groups, np.int32),
            at=np.arange(groups),
            source_rows=np.array([groups], np.int64),
            num_bytes=np.full(groups, 3 * stored),
            stored_bytes=np.full(groups, stored),
        ),
        ranges=ranges,
        num_rows=sum(stop - start for start, stop in ranges),
        reader=SimpleNamespace(**{"share": 1.0, "functions": None, **reader}),
    )


def choices(split: Any, *, seed: int = 0) -> Iterator[SampleChoice]:
    spec: Any = SimpleNamespace(seed=seed)
    return sample_rows.choices(spec, split)


def chosen(split: Any, *, seed: int = 0) -> SampleChoice:
    return next(choices(split, seed=seed))


def num_sampled(choice: SampleChoice) -> int:
    return int((choice.tokenized_ranges[:, 1] - choice.tokenized_ranges[:, 0]).sum())


def groups_read(split: Any, choice: SampleChoice) -> np.ndarray:
    covered = cover(split.groups.ends, split.ranges)
    return np.unique(covered.groups[cover(covered.ends, choice.read_ranges).groups])


@pytest.mark.parametrize(
    ("split", "most_bytes"),
    [
        (split_of(groups=100), 3 * MB),
        (split_of(groups=10_000), 0.005 * 10_000 * 100 * KB),
        (split_of(groups=300, stored=MB), 3 * MB),
        (split_of(groups=100_000, stored=10 * KB), 256 * 10 * KB),
        (split_of(groups=5, stored=9 * MB), 9 * MB),  # at least one
    ],
)
def test_few_bytes_of_few_groups_are_read(split: Any, most_bytes: float) -> None:
    choice = chosen(split)
    read = groups_read(split, choice)
    assert split.groups.stored_bytes[read].sum() <= most_bytes
    assert len(read) <= 256
    assert not choice.whole
    assert split.groups.stored_bytes[read].sum() > 0.5 * most_bytes


def test_a_split_of_few_bytes_is_read_whole() -> None:
    choice = chosen(split_of(groups=30))
    assert choice.whole
    assert choice.read_ranges.tolist() == [[0, 30_000]]
    assert num_sampled(choice) == 4096


def test_of_rows_that_functions_change_only_runs_are_read() -> None:
    choice = chosen(split_of(groups=100, functions="a map"))
    assert choice.read_ranges.tolist() == choice.tokenized_ranges.tolist()


def test_where_filters_leave_few_rows_more_are_read() -> None:
    plain, filtered = (chosen(split_of(groups=1000, share=share, functions="a filter")) for share in (1.0, 0.2))
    assert num_sampled(filtered) == pytest.approx(5 * num_sampled(plain), rel=0.1)


def test_where_filters_leave_no_row_larger_and_larger_samples_are_read() -> None:
    every = list(choices(split_of(groups=7_500, share=0.001, functions="a filter")))
    assert num_sampled(every[0]) < num_sampled(every[1]) / 4
    assert [choice.whole for choice in every] == [False, False, True]
