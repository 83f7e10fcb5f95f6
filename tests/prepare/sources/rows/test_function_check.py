"""Splits after the user's functions."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.columns import labels
from pipelines.prepare.sources.columns.labels import LabelPlan
from pipelines.prepare.sources.resolve.features import Columns
from pipelines.prepare.sources.rows import function_check
from pipelines.prepare.sources.rows.reading import Source, SplitSource
from pipelines.prepare.sources.rows.unused_rows import reasons_of, without_reasons
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tests.prepare.sources.stored import Stored, kept_rows, rows_of, store
from tests.support.functions import HEAD, UPPER, changed, find, folder, one, refused, write
from tfrecord_io.errors import SourceError

__all__ = ["folder"]


def opened(
    folder: Path, rows: pa.Table | Sequence[Any], functions: Sequence[UserFunction], *, group_rows: int = 100
) -> tuple[SplitSource, Columns]:
    """Return the split `train` with these rows after the functions, and its columns."""
    stored = store(folder, group_rows=group_rows, train=rows)
    behind = changed(stored, functions)
    return behind.chosen(SourceConfig(dataset="data"))["train"], behind.columns["train"]


def filtered(batch: pa.RecordBatch) -> list[bool]:
    reasons = reasons_of(batch)
    return [False] * batch.num_rows if reasons is None else (reasons == "filtered").tolist()


class TestReading:
    @settings(max_examples=15)
    @given(
        keep=st.lists(st.booleans(), min_size=2, max_size=40).filter(any),
        cuts=st.lists(st.integers(0, 40), max_size=4),
        group_rows=st.integers(1, 41),
    )
    def test_rows_keep_their_numbers_and_those_left_out_are_marked(
        self, tmp_path_factory: pytest.TempPathFactory, keep: list[bool], cuts: list[int], group_rows: int
    ) -> None:
        write(UPPER + "def kept(t): return t['keep']\n")
        functions = find(("filter", "clean:kept"), ("map", "clean:upper"))
        rows = [{"text": f"row {index}", "keep": value} for index, value in enumerate(keep)]
        split, _ = opened(tmp_path_factory.mktemp("rows"), rows, functions, group_rows=group_rows)
        edges = sorted({0, len(keep), *(cut for cut in cuts if cut < len(keep))})
        batches = rows_of(split, ["text"], list(itertools.pairwise(edges)))
        texts = [text for batch in batches for text in batch.column("text").to_pylist()]
        assert texts == [f"ROW {index}" if value else None for index, value in enumerate(keep)]
        assert list(itertools.chain.from_iterable(map(filtered, batches))) == [not value for value in keep]
        assert {name for batch in batches for name in without_reasons(batch).schema.names} == {"text"}
        assert [text for batch in batches for text in kept_rows(batch)["text"].to_pylist()] == list(filter(None, texts))

    def test_a_column_may_be_added_replaced_and_dropped(self, folder: Path) -> None:
        write(f"{HEAD}def f(t): return pa.table({{'words': pc.utf8_split_whitespace(t['text']), 'text': t['n']}})\n")
        split, columns = opened(folder, [{"text": "a b", "n": 3}] * 4, find(("map", "clean:f")))
        assert {n: column.kind for n, column in columns.items()} == {"words": pa.list_(pa.string()), "text": pa.int64()}
        assert split.reader.schema == columns.arrow_schema
        (batch,) = rows_of(split, ["text", "words"])
        assert batch.to_pylist()[0] == {"text": 3, "words": ["a", "b"]}

    @pytest.mark.parametrize(("last", "value"), [(None, 1), ([], [1])])
    def test_a_batch_of_nothing_but_nulls_has_the_columns_type(self, folder: Path, last: Any, value: Any) -> None:
        write(f"{HEAD}def f(t): return pa.table({{'x': pa.array(t['x'].to_pylist())}})\n")
        rows = [{"x": value}] * 600 + [{"x": last}] * 1000
        split, _ = opened(folder, rows, find(("map", "clean:f")))
        batches = rows_of(split, ["x"])
        assert len({batch.schema.field("x").type for batch in batches}) == 1
        assert batches[-1].to_pylist()[-1] == {"x": last}

    def test_another_type_in_some_rows_is_refused(self, folder: Path) -> None:
        body = "def f(t):\n    kind = pa.int64() if t['n'][0].as_py() < 950 else pa.float64()\n"
        write(f"{HEAD}{body}    return pa.table({{'x': t['n'].cast(kind)}})\n")
        split, _ = opened(folder, [{"n": index} for index in range(1000)], find(("map", "clean:f")))
        with refused(SourceError, "double column 'x' for rows 950 to 959 of split 'train', and int64 for other rows"):
            rows_of(split, ["x"], [(950, 960)])


def classes(folder: Path) -> Stored:
    """Rows with class labels, as `datasets` writes them, and a split without."""
    metadata = (
        '{"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, '
        '"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}'
    )
    table = pa.table({"text": [f"row {index}" for index in range(100)], "label": [index % 2 for index in range(100)]})
    return store(
        folder, train=table.replace_schema_metadata({"huggingface": metadata}), test=table.drop_columns("label")
    )


class TestClasses:
    @pytest.mark.parametrize(
        ("body", "names"),
        [
            ("return t.set_column(0, 'text', pc.utf8_upper(t['text']))", ["no", "yes"]),
            ("return pa.Table.from_pylist(t.to_pylist())", ["no", "yes"]),
            ("return t.set_column(1, 'label', pc.subtract(1, t['label']))", None),
            ("return t.set_column(1, 'label', t['label'].cast('int32'))", None),
        ],
    )
    def test_of_values_that_a_map_changes_they_are_gone(self, folder: Path, body: str, names: list[str] | None) -> None:
        stored = changed(classes(folder), [one("map", body)])
        assert stored.columns["train"]["label"].classes == (names and tuple(names))

    def test_a_split_that_nobody_asks_for_need_not_suit(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        stored, functions = classes(folder), [one("filter", "return pc.equal(t['label'], 1)")]
        assert changed(stored, functions).readers.keys() == {"train"}
        assert "'test', which is not requested" in caplog.text
        with refused(SourceError, "raised KeyError", "of split 'test'"):
            changed(stored, functions, requested=("train", "test"))

    def test_string_labels_are_named_by_what_a_map_gives_and_a_filter_leaves(self, folder: Path) -> None:
        body = "def named(t): return t.append_column('name', pc.if_else(pc.equal(t['n'], 1), 'odd', 'even'))\n"
        write(f"{HEAD}{body}def odd(t): return pc.equal(t['n'], 1)\n")
        stored, steps = store(folder, train=[{"n": n % 2} for n in range(20)]), find(("map", "clean:named"))
        for left, names in (((), ("even", "odd")), (find(("filter", "clean:odd")), ("odd",))):
            behind = changed(stored, [*steps, *left])
            splits = behind.chosen(SourceConfig(dataset="data"))
            source = Source(splits=splits, all_splits=splits, columns=behind.columns, identity={})
            assert labels.with_names(LabelPlan(column="name", kind="string"), source=source).names == names


ROWS = [{"text": f"row {index % 70}", "n": index, "x": None if index % 5 else float("nan")} for index in range(200)]


class TestPlanning:
    def test_of_large_groups_few_are_read_and_from_all_along_the_split(self, folder: Path) -> None:
        rng = np.random.default_rng(0)
        noise = pa.table({"x": pa.array([rng.bytes(20_000) for _ in range(1200)])})
        groups = store(folder, group_rows=50, train=noise).groups["train"]
        at = sorted(set(groups.pieces(function_check._clusters(groups)).at.tolist()))
        assert 1 <= len(at) <= 3
        assert at[0] == 0
        assert groups.stored_bytes[at].sum() <= 3 << 20

    def test_the_share_is_what_the_filters_leave_of_the_sample(self, folder: Path) -> None:
        split, _ = opened(folder, ROWS, [one("filter", "return pc.less(t['n'], 50)")])
        assert split.reader.share == pytest.approx(0.25, abs=0.05)

    def test_a_map_behind_a_filter_that_leaves_one_row_of_many(self, folder: Path) -> None:
        write(UPPER + "def rare(t): return pc.equal(t['n'], 4567)\n")
        rows = [{"text": f"row {index}", "n": index} for index in range(6000)]
        split, _ = opened(folder, rows, find(("filter", "clean:rare"), ("map", "clean:upper")))
        texts = [text for batch in rows_of(split, ["text"]) for text in batch.column(0).to_pylist()]
        assert [(index, text) for index, text in enumerate(texts) if text] == [(4567, "ROW 4567")]

    def test_filters_that_leave_nothing(self, folder: Path) -> None:
        with refused(SourceError, "split 'train'", "none of its 200 rows passes --filter clean:f"):
            opened(folder, ROWS, [one("filter", "return np.zeros(len(t), bool)")])

    def test_a_dictionary_is_read_as_its_values(self, folder: Path) -> None:
        step = one("map", "return t.set_column(0, 'text', t['text'].dictionary_encode())")
        split, columns = opened(folder, ROWS, [step])
        assert columns["text"].kind == pa.string()
        texts = [text for batch in rows_of(split, ["text"]) for text in batch.column(0).to_pylist()]
        assert texts == [row["text"] for row in ROWS]
