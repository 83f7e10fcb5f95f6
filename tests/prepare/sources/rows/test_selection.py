"""Splits and slices that the user asks for, under names of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from tfrecord_io.errors import ConfigError, SourceError, SplitNotFoundError

SCHEMA = pa.schema([("text", pa.string())])


def grouped(num_rows: int, *, rows: int = 7) -> Groups:
    """Groups of at most so many rows of one file that nobody reads."""
    counts = np.diff(np.minimum(np.arange(0, num_rows + rows, rows), num_rows))
    return Groups(
        files=(StoredFile(path="a.parquet", size=1),),
        num_rows=counts,
        file=np.zeros(len(counts), np.int32),
        at=np.arange(len(counts)),
        source_rows=np.array([rows], np.int64),
        num_bytes=counts * 10,
        stored_bytes=counts * 5,
    )


def choose(lengths: Mapping[str, int], *splits: str, limit: int | None = None) -> dict[str, SplitSource]:
    config = SourceConfig(dataset="data", splits=splits, limit=limit)
    groups = {name: grouped(rows) for name, rows in lengths.items()}
    readers = {name: RowReader(split=name, types=SCHEMA) for name in lengths}
    return selection.select_splits(config, groups, readers)


def ranges(chosen: Mapping[str, SplitSource]) -> dict[str, tuple[str, tuple[tuple[int, int], ...]]]:
    return {name: (split.source_split, split.ranges) for name, split in chosen.items()}


class TestSlices:
    """What is asked for is what comes out."""

    def test_without_options_every_split_that_has_rows(self) -> None:
        found = choose({"train": 30, "empty": 0, "my-split.v2": 5})
        assert ranges(found) == {"train": ("train", ((0, 30),)), "my-split.v2": ("my-split.v2", ((0, 5),))}

    def test_a_split_without_rows_is_said_to_be_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        choose({"train": 30, "empty": 0})
        assert "data: split 'empty' has no rows and is left out" in caplog.text

    def test_joined_slices_keep_their_order(self) -> None:
        assert choose({"train": 1000}, "train[90%:]+train[:10%]")["train"].ranges == ((900, 1000), (0, 100))

    def test_a_slice_under_a_name_of_its_own(self) -> None:
        found = choose({"train": 1000}, "validation=train[:1%]", "train=train[1%:]")
        assert ranges(found) == {"validation": ("train", ((0, 10),)), "train": ("train", ((10, 1000),))}
        assert found["validation"].name == "validation"
        assert found["validation"].reader.split == "train"

    def test_a_limit_is_of_each_split(self) -> None:
        found = choose({"train": 30, "test": 2}, "train[5:7]+train[1:3]", "a=train[10:]", "test", limit=3)
        assert [split.ranges for split in found.values()] == [((5, 7), (1, 2)), ((10, 13),), ((0, 2),)]


class TestOverlaps:
    """Rows in several splits are allowed, and said."""

    @pytest.mark.parametrize(
        ("specs", "said"),
        [
            (("train", "validation=train[:10%]"), "3 rows of split 'train' will be in 'train' and in 'validation'"),
            (("a=train[:5]+train[7:9]", "b=train[4:8]"), "2 rows of split 'train' will be in 'a' and in 'b'"),
        ],
    )
    def test_rows_in_two_splits_are_counted(
        self, caplog: pytest.LogCaptureFixture, specs: Sequence[str], said: str
    ) -> None:
        with caplog.at_level(logging.WARNING, logger="pipelines"):
            assert len(choose({"train": 30}, *specs)) == 2
        assert said in caplog.text


class TestRefusals:
    """Two lines that say what to type instead."""

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("tset", r"--split 'tset': Unknown split .tset..*did you mean 'test'\? choose among test, train"),
            ("train[", r"--split 'train\[': .*choose among"),
            ("train[5:5]", r"--split 'train\[5:5\]' has no rows, expected at least one"),
            ("a=train[200:]", r"has no rows, expected at least one"),
            ("a=tran[:3]", r"did you mean 'train'\? choose among test, train"),
            ("train,test", r"give each by itself: --split train --split test"),
            ("train+test", r"joins the splits \['test', 'train'\].*--split once for each"),
            ("train[:500%]", r"Percent slice boundaries must be"),
        ],
    )
    def test_what_is_not_there_is_named_with_what_is(self, spec: str, message: str) -> None:
        with pytest.raises(SplitNotFoundError, match=message):
            choose({"train": 30, "test": 30}, spec)

    @pytest.mark.parametrize(
        "specs", [("train[:2]", "train[4:]"), ("a=train[:2]", "a=train[4:]"), ("train", "train=test")]
    )
    def test_a_name_that_is_given_twice(self, specs: Sequence[str]) -> None:
        with pytest.raises(SplitNotFoundError, match=r"a split '\w+' already.*name of its own.*plus sign"):
            choose({"train": 30, "test": 30}, *specs)

    @pytest.mark.parametrize("spec", ["=train", "a b=train", "a/b=train", "a=", ".a=train", "a= "])
    def test_a_name_that_is_none_is_refused_before_anything_is_opened(self, spec: str) -> None:
        with pytest.raises(ConfigError, match="expected NAME=SPLIT"):
            SourceConfig(dataset="data", splits=(spec,))

    def test_a_source_without_rows(self) -> None:
        with pytest.raises(SourceError, match="data: no rows, expected at least one"):
            choose({"train": 0})


class TestNeeded:
    """Which splits have to be looked at is known before their rows are."""

    @pytest.mark.parametrize(
        ("specs", "expected"),
        [
            ((), ("train", "test", "my-split")),
            (("a=train[:5%]", "b=train[5%:]"), ("train",)),
            (("my-split", "test[:3]"), ("my-split", "test")),
        ],
    )
    def test_the_splits_that_rows_are_taken_from(self, specs: tuple[str, ...], expected: tuple[str, ...]) -> None:
        config = SourceConfig(dataset="data", splits=specs)
        assert selection.needed_source_splits(config, ("train", "test", "my-split")) == expected
