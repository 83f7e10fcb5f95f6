"""Rows held out: each row in one split, equal texts in the same, counted in the others."""

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import HoldOutOption
from pipelines.prepare.sources.columns.extraction import ColumnPlan, validate
from pipelines.prepare.sources.rows import selection
from pipelines.prepare.sources.rows.hash_filter import HASHES, row_hashes
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.selection import HoldOut
from pipelines.prepare.sources.rows.unused_rows import split_reasons
from tests import building
from tests.prepare.sources.stored import kept_rows, rows_of, store
from tests.support.functions import changed, find, folder, refused, write
from tfrecord_io.errors import ConfigError, PrepError, SplitNotFoundError

__all__ = ["folder"]

ROWS = [{"text": f"row {index}", "n": index} for index in range(2000)]
PLAN = ColumnPlan(texts=("text",))


def divided(
    folder: Path,
    *wanted: str,
    rows: pa.Table | Sequence[Mapping[str, Any]] = ROWS,
    splits: tuple[str, ...] = (),
    seed: int = 0,
    by: str | None = None,
    function: Any = None,
    **options: Any,
) -> dict[str, SplitSource]:
    """The splits of a build with these --hold-out and --split, and a user function."""
    config = SourceConfig(dataset="data", splits=splits, hold_out=wanted)
    stored = changed(store(folder, train=rows, **options), find(function) if function else ())
    chosen = stored.chosen(config)
    held = selection.resolve_hold_outs(config.hold_outs, chosen, by=by)
    return selection.divide(chosen, held, columns=("text",), seed=seed)


def numbers(split: SplitSource) -> list[int]:
    return [n for batch in rows_of(split, ["n"]) for n in kept_rows(batch).column("n").to_pylist()]


def counted(split: SplitSource) -> dict[str, int]:
    """The rows of a split by what becomes of them."""
    rows: collections.Counter[str] = collections.Counter()
    for batch in rows_of(split, ["text"]):
        on_purpose, unusable = split_reasons(reasons := validate(batch, PLAN))
        rows.update(on_purpose)
        rows.update([str(reasons[index]) for index in unusable])
        rows["used"] += int((reasons == "").sum())
    return dict(rows)


class TestSides:
    def test_each_row_is_in_one_split_and_about_so_many_are_held_out(self, folder: Path) -> None:
        splits = divided(folder, "validation=10%")
        train, validation = numbers(splits["train"]), numbers(splits["validation"])
        assert sorted(train + validation) == list(range(2000))
        assert 150 < len(validation) < 250
        assert list(splits) == ["train", "validation"]

    def test_rows_of_one_group_never_part(self, folder: Path) -> None:
        rows = [{"text": f"text {index}", "n": index, "user": index % 40 or None} for index in range(2000)]
        splits = divided(folder, "validation=25%", "test=0.25", rows=rows, by="user")
        sides = [{number % 40 for number in numbers(split)} for split in splits.values()]
        assert sum(map(len, sides)) == 40
        assert all(len(side) > 2 for side in sides)
        assert 0 in sides[0], "rows without a group stay"

    def test_the_seed_decides_which(self, folder: Path) -> None:
        held = [numbers(divided(folder, "validation=10%", seed=seed)["validation"]) for seed in (0, 1, 10**30)]
        assert len({tuple(rows) for rows in held}) == 3
        expected = 2000 * 0.1 * 0.1
        assert len(set(held[0]) & set(held[1])) < 3 * expected

    def test_slices_are_kept_and_names_are_those_of_the_output(self, folder: Path) -> None:
        splits = divided(folder, "v=a:20%", splits=("a=train[:500]", "b=train[500:600]"))
        assert {name: (split.name, split.source_split, split.ranges) for name, split in splits.items()} == {
            "a": ("a", "train", ((0, 500),)),
            "b": ("b", "train", ((500, 600),)),
            "v": ("v", "train", ((0, 500),)),
        }
        assert sorted(numbers(splits["a"]) + numbers(splits["v"])) == list(range(500))
        assert numbers(splits["b"]) == list(range(500, 600))

    @settings(max_examples=25)
    @given(
        texts=st.lists(st.none() | st.sampled_from("abcdefgh"), min_size=1, max_size=60),
        share=st.integers(1, 99),
        group_rows=st.integers(1, 60),
    )
    def test_ledgers_always_add_up(
        self, tmp_path_factory: pytest.TempPathFactory, texts: list[str | None], share: int, group_rows: int
    ) -> None:
        rows = pa.table({"text": pa.array(texts, pa.string()), "n": np.arange(len(texts))})
        splits = divided(tmp_path_factory.mktemp("rows"), f"v={share}%", rows=rows, group_rows=group_rows)
        train, held = counted(splits["train"]), counted(splits["v"])
        assert sum(train.values()) == sum(held.values()) == len(texts)
        assert held["used"] == train.get("held_out", 0)
        assert held.get("not_held_out", 0) == train["used"] + train.get("text_null", 0)


class TestWithFunctions:
    """Rows are hashed after the user's functions. A filtered row counts once, in its source split."""

    def test_rows_are_hashed_as_they_are_used(self, folder: Path) -> None:
        write("import pyarrow as pa\ndef same(t): return t.set_column(0, 'text', pa.array(['x'] * len(t)))\n")
        splits = divided(folder, "validation=30%", function=("map", "clean:same"))
        assert sorted(len(numbers(split)) for split in splits.values()) == [0, 2000]

    def test_filtered_comes_first(self, folder: Path) -> None:
        write("import pyarrow.compute as pc\ndef even(t): return pc.equal(pc.bit_wise_and(t['n'], 1), 0)\n")
        splits = divided(folder, "validation=30%", function=("filter", "clean:even"))
        train, held = counted(splits["train"]), counted(splits["validation"])
        assert (train["filtered"], held.get("filtered")) == (1000, None), "each row counts once"
        assert train["held_out"] == held["used"]
        assert held["not_held_out"] == train["used"] + train["filtered"]
        assert splits["validation"].reader.share == pytest.approx(0.15, abs=0.05)


class TestOptions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("validation=1%", ("validation", None, "1%")),
            ("validation=0.25%", ("validation", None, "0.25%")),
            ("v=0.1", ("v", None, "0.1")),
            ("v=extra:.005", ("v", "extra", ".005")),
            ("v=1_000", ("v", None, "1_000")),
            ("test=my-split:5%", ("test", "my-split", "5%")),
        ],
    )
    def test_a_name_with_a_share_or_a_number_of_rows(self, text: str, expected: tuple[str, str | None, str]) -> None:
        option = HoldOutOption.parse(text)
        assert (option.name, option.split, option.amount) == expected

    @pytest.mark.parametrize(
        "text",
        [
            *("", "validation", "=1%", "v=", "v=%", "v=1.5", "v=x", "v=-1", "v=1%%", "v=0", "v=0%", "v=100%", "v=200%"),
            *("a/b=1%", ".v=1%", "v=train:", "v=:1%", "v=1e3", "v=0.0", "v=1.0", "v=1.", "v=_"),
        ],
    )
    def test_what_is_no_such_thing_is_refused(self, text: str) -> None:
        with refused(ConfigError, f"--hold-out {text!r}, expected"):
            SourceConfig(dataset="data", hold_out=text)

    @pytest.mark.parametrize(
        ("wanted", "splits", "kind", "message"),
        [
            (("train=1%",), (), ConfigError, "--hold-out train=1%: there is already a split 'train'"),
            (("v=dev:1%",), (), SplitNotFoundError, "--hold-out v=dev:1%: this build makes no split 'dev'"),
            (("v=2000",), (), ConfigError, "no row of split 'train' would be left of 2,000 rows"),
            (("v=60%", "w=40%"), (), ConfigError, "--hold-out w=40%: no row of split 'train' would be left"),
            (
                ("v=1%",),
                ("a=train[:9]", "b=train[9:]"),
                SplitNotFoundError,
                "this build makes no split 'train', expected one of a, b",
            ),
        ],
    )
    def test_what_the_splits_do_not_allow(
        self, folder: Path, wanted: tuple[str, ...], splits: tuple[str, ...], kind: type[PrepError], message: str
    ) -> None:
        with refused(kind, message):
            divided(folder, *wanted, splits=splits)

    def test_the_manifest_says_which_hashes(self, folder: Path) -> None:
        config = SourceConfig(dataset="data", hold_out=("v=25%", "t=50%"))
        stored = store(folder, train=ROWS)
        chosen = stored.chosen(config)
        held = selection.resolve_hold_outs(config.hold_outs, chosen, by="user")
        assert [option.to_json() for option in held] == [
            {"split": "v", "of": "train", "hashes": [0, HASHES // 4], "by": "user"},
            {"split": "t", "of": "train", "hashes": [HASHES // 4, 3 * HASHES // 4], "by": "user"},
        ]
        assert tuple(HoldOut.from_json(option.to_json()) for option in held) == held

    def test_golden_hashes_stay_what_they_are(self, folder: Path) -> None:
        """Datasets of earlier releases must divide the same way."""
        assert numbers(divided(folder, "v=1%", rows=ROWS[:500])["v"]) == [84, 93, 250, 252, 350, 361, 398]


def test_a_build_by_groups_counts_each_row_once_and_can_be_repaired(tmp_path: Path) -> None:
    rows = [{"text": f"good {index}", "user": f"user {index % 7}"} for index in range(70)]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "train.parquet")
    out = tmp_path / "out"
    options = building.options(out, hold_out="validation=0.4", hold_out_by="user")
    outcome = building.command("build", tmp_path / "in", *options)
    assert outcome.status == 0, outcome.err
    splits = building.read_manifest(out).splits
    table = {words[0]: words[1] for line in outcome.err.splitlines() if len(words := line.split()) > 5}
    assert {name: int(table[name]) for name in splits} == {name: split.num_examples for name, split in splits.items()}
    assert sum(split.num_examples for split in splits.values()) == 70
    assert "70 rows" in outcome.err.splitlines()[-1], "tokenized once"
    assert all(split.num_examples % 10 == 0 for split in splits.values())
    (out / splits["validation"].shards[0].name).unlink()
    assert building.command("verify", out, "--repair").status == 0
    missing = building.options(tmp_path / "no", hold_out="validation=0.4", hold_out_by="author")
    assert "has no column 'author'" in building.command("build", tmp_path / "in", *missing).error[0]


# Equal content has equal hashes, however Arrow holds it and wherever a batch begins.

TEXT = st.none() | st.text(max_size=6)
MESSAGES = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"role": TEXT, "content": TEXT, "n": st.none() | st.integers(0, 9)}), max_size=3
)
NESTED = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("n", pa.int64())]))
OTHERWISE = pa.large_list(pa.struct([("n", pa.int32()), ("content", pa.large_string()), ("role", pa.string())]))


def hashes(values: list[Any], kind: pa.DataType, *, seed: int = 1) -> list[int]:
    return row_hashes([pa.array(values, kind)], seed=seed).tolist()


def test_a_text_has_the_hash_of_its_bytes() -> None:
    assert hashes(["", "añ"], pa.string()) == [xxhash.xxh3_64_intdigest(text.encode(), 1) for text in ("", "añ")]


@given(values=st.lists(TEXT, max_size=20), start=st.integers(0, 20))
def test_texts_have_it_in_any_type_and_any_slice(values: list[str | None], start: int) -> None:
    plain = hashes(values, pa.string())
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert hashes(values, kind) == plain
    assert row_hashes([pa.array(values, pa.string()).slice(start)], seed=1).tolist() == plain[start:]


@given(values=st.lists(MESSAGES, max_size=12), start=st.integers(0, 12))
def test_nested_values_have_it_in_any_type_any_order_of_fields_and_any_slice(values: list[Any], start: int) -> None:
    plain = hashes(values, NESTED)
    assert hashes(values, OTHERWISE) == plain
    assert row_hashes([pa.array(values, NESTED).slice(start)], seed=1).tolist() == plain[start:]


@given(values=st.lists(MESSAGES, min_size=2, max_size=12))
def test_nested_values_are_equal_if_and_only_if_their_hashes_are(values: list[Any]) -> None:
    numbers = hashes(values, NESTED)
    for one, left in zip(values, numbers, strict=True):
        for other, right in zip(values, numbers, strict=True):
            assert (one == other) == (left == right)


def test_several_columns_are_told_apart() -> None:
    left, right = pa.array(["a", "b", "a", "ab"]), pa.array(["b", "a", "b", ""])
    numbers = row_hashes([left, right], seed=1)
    assert len(set(numbers.tolist())) == 3
    assert numbers[0] == numbers[2]
    assert numbers.tolist() != row_hashes([right, left], seed=1).tolist()


def test_text_that_is_no_utf8_has_one_too() -> None:
    damaged = pa.array([b"\xff\xfe", b"a"]).view(pa.string())
    assert row_hashes([damaged], seed=1)[1] == hashes(["a"], pa.string())[0]
