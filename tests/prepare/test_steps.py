"""The user's functions: where they are found, what they may return, and what rows look like after them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.prepare import steps
from pipelines.prepare.config import SourceConfig, StepConfig, StepKind
from pipelines.prepare.loading import open_source
from pipelines.prepare.opened import Source, SplitSource
from pipelines.prepare.stepped_files import MARK, marked, without_mark
from pipelines.prepare.stepping import stepped
from pipelines.prepare.steps import Step
from tests import building
from tfrecord_io.errors import ConfigError, FormatError, PrepError, SourceError

HEAD = "import numpy as np\nimport pyarrow as pa\nimport pyarrow.compute as pc\n"
UPPER = HEAD + "def upper(t): return t.set_column(0, 'text', pc.utf8_upper(t['text']))\n"
LONG = HEAD + "def long(t): return pc.greater(pc.utf8_length(t['text']), 2)\n"
TABLE = pa.table({"text": ["a", "bbb", None, "cccc"], "n": [1, 2, 3, 4]})
KINDS: tuple[StepKind, ...] = ("map", "filter")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory of its own, which the search path forgets afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "clean") -> Path:
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def find(*wanted: tuple[StepKind, str]) -> tuple[Step, ...]:
    return steps.find([StepConfig(kind=kind, spec=spec) for kind, spec in wanted])


def one(kind: StepKind, body: str) -> Step:
    """A step of a module with one function `f(t)`."""
    write(f"{HEAD}def f(t):\n    {body}\n")
    return find((kind, "clean:f"))[0]


def run(step: Step, table: pa.Table = TABLE) -> Any:
    return steps.call(step, table, place="rows 0 to 3 of split 'train'")


@contextlib.contextmanager
def refused(kind: type[PrepError], *parts: str) -> Iterator[None]:
    """An error of this kind, with a remedy, whose cause has all of `parts`."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    assert caught.value.remedy
    assert [part for part in parts if part not in caught.value.cause] == [], caught.value.cause


class TestFinding:
    """Which text a step is."""

    def test_a_file_in_the_current_directory(self) -> None:
        path = write(UPPER)
        (step,) = find(("map", "clean:upper"))
        assert (step.source, step.path, step.option) == (UPPER, str(path.absolute()), "--map clean:upper")

    def test_a_file_below_it_without_executing_the_packages_above(self) -> None:
        write("raise SystemExit('not me')", "mine.__init__")
        write(UPPER, "mine.own.clean")
        (step,) = find(("map", "mine.own.clean:upper"))
        assert run(step)["text"].to_pylist() == ["A", "BBB", None, "CCCC"]

    def test_a_package_is_its_init_file(self) -> None:
        write("from .inner import upper", "mine.__init__")
        write(UPPER, "mine.inner")
        assert run(find(("map", "mine:upper"))[0])["text"][1].as_py() == "BBB"

    def test_a_module_that_is_installed(self) -> None:
        (step,) = find(("map", "tests.building:tokenizer"))
        assert step.source == Path(building.__file__).read_text(encoding="utf-8")

    def test_a_file_here_is_meant_before_an_installed_module_of_its_name(self) -> None:
        write(UPPER, "colorsys")
        assert find(("map", "colorsys:upper"))[0].source == UPPER

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "spec", ["clean", "clean:", ":f", "a b:f", "clean.py:f:g", "./clean:f", "clean:a.b", "1:f"]
    )
    def test_a_spec_is_module_and_function(self, kind: StepKind, spec: str) -> None:
        with refused(ConfigError, f"--{kind}", repr(spec), "package.module:function"):
            StepConfig(kind=kind, spec=spec)

    @pytest.mark.parametrize("name", ["nowhere", "nowhere.at.all", "os.nothing", "__main__", "folder"])
    def test_a_module_that_is_not_there(self, name: str, folder: Path) -> None:
        (folder / "folder").mkdir()
        with refused(ConfigError, f"--map {name}:f", f"no module {name}", str(folder)):
            find(("map", f"{name}:f"))

    @pytest.mark.parametrize("name", ["math", "sys", "_struct"])
    def test_a_module_without_source_text(self, name: str) -> None:
        with refused(ConfigError, f"--filter {name}:f", "no source text"):
            find(("filter", f"{name}:f"))

    def test_a_function_that_is_not_there(self) -> None:
        write("def first(t): ...\ndef second(t): ...\n")
        with pytest.raises(ConfigError, match="clean has no function 'third'") as caught:
            find(("map", "clean:third"))
        assert caught.value.remedy == "choose among first, second"

    def test_something_that_cannot_be_called(self) -> None:
        write("number = 3\n")
        with refused(ConfigError, "'number'", "is a int, expected a function"):
            find(("map", "clean:number"))

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("def f(:\n", "SyntaxError"),
            ("\nimport nothing_of_this_name\n", "No module named 'nothing_of_this_name' (line 2 of clean.py)"),
            ("1 / 0\n", "ZeroDivisionError: division by zero (line 1 of clean.py)"),
            ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ],
    )
    def test_a_module_that_cannot_be_executed(self, text: str, said: str) -> None:
        path = write(text)
        with refused(ConfigError, f"{path.absolute()} cannot be executed", said):
            find(("map", "clean:f"))

    def test_a_module_that_is_no_text(self, folder: Path) -> None:
        (folder / "clean.py").write_bytes(b"# \xff\n")
        with refused(ConfigError, "no module clean"):
            find(("map", "clean:f"))


class TestPinning:
    """What runs is the text that was found, wherever and whenever."""

    def test_an_edit_meanwhile_changes_nothing(self) -> None:
        before = one("map", "return t")
        after = one("map", "return t.append_column('new', t['n'])")
        assert run(before).column_names == ["text", "n"]
        assert run(after).column_names == ["text", "n", "new"]

    def test_any_edit_of_the_module_shows_and_the_place_of_the_file_does_not(self, folder: Path) -> None:
        write(UPPER)
        (before,) = find(("map", "clean:upper"))
        write(UPPER + "# x\n")
        (edited,) = find(("map", "clean:upper"))
        (folder / "other").mkdir()
        os.chdir("other")
        write(UPPER)
        (moved,) = find(("map", "clean:upper"))
        assert before.identity() != edited.identity()
        assert (before, before.identity()) == (moved, moved.identity())
        assert before.identity().keys() == {"map", "module_sha256"}

    def test_a_step_travels_to_where_its_file_is_not(self, folder: Path) -> None:
        write(UPPER)
        (folder / "elsewhere").mkdir()
        packed = pickle.dumps(find(("map", "clean:upper"))[0])
        code = (
            "import pickle, sys, pyarrow as pa; from pipelines.prepare import steps; "
            "step = pickle.loads(sys.stdin.buffer.read()); "
            "print(steps.call(step, pa.table({'text': ['a']}), place='')['text'].to_pylist())"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder / "elsewhere",
            env=building.environment(),
            input=packed,
            capture_output=True,
            check=True,
        )
        assert ran.stdout.decode().strip() == "['A']"

    def test_a_module_is_executed_once(self, folder: Path) -> None:
        write("import os\nos.mkdir('once')\ndef f(t): return t\ndef g(t): return t\n")
        for step in find(("map", "clean:f"), ("map", "clean:g")):
            run(step)
            run(step)
        assert (folder / "once").is_dir()

    def test_modules_may_define_dataclasses(self) -> None:
        write(
            "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    n: int = 3\n"
            "def f(t): return t.append_column('m', [[A().n] * t.num_rows])\n"
        )
        assert run(find(("map", "clean:f"))[0])["m"].to_pylist() == [3] * 4

    def test_a_file_here_hides_no_library(self, folder: Path) -> None:
        write("raise ImportError('wrong file')", "colorsys")
        write("import colorsys\ndef f(t): return t\n")
        sys.modules.pop("colorsys", None)
        assert run(find(("map", "clean:f"))[0]) is TABLE

    def test_stored_steps_come_back(self) -> None:
        write(UPPER + LONG)
        found = find(("map", "clean:upper"), ("filter", "clean:long"))
        stored = json.loads(json.dumps([step.to_json() for step in found]))
        again = steps.restore(stored, expected=[step.identity() for step in found], place="source.json")
        assert again == found

    @pytest.mark.parametrize("damage", [[], None, 3, [{}], [3], "source", "spec"])
    def test_stored_steps_that_are_not_those_of_the_manifest(self, damage: Any) -> None:
        step = one("map", "return t")
        stored = [{**step.to_json(), damage: "x:y"}] if isinstance(damage, str) else damage
        with refused(FormatError, "source.json", "--map clean:f"):
            steps.restore(stored, expected=[step.identity()], place="source.json")


class TestCalling:
    """What a function gets and may return."""

    @pytest.mark.parametrize(
        "mask",
        [
            "pa.array([True, False, True, False])",
            "pa.chunked_array([[True, False], [True, False]])",
            "np.array([True, False, True, False])",
            "pa.array([True, None, True, None])",
        ],
    )
    def test_a_mask_is_of_arrow_or_numpy_and_null_is_no(self, mask: str) -> None:
        assert run(one("filter", f"return {mask}")).tolist() == [True, False, True, False]

    @pytest.mark.parametrize(
        ("kind", "body", "said"),
        [
            ("map", "return t.slice(1)", "gave 3 rows for rows 0 to 3 of split 'train', expected 4"),
            ("map", "return None", "gave None"),
            ("map", "return t['text']", "gave an Arrow array of string"),
            ("map", "return t.to_pylist()", "gave a list"),
            ("map", "return t.append_column('n', t['n'])", "several columns named 'n'"),
            ("filter", "return t", "gave a Table"),
            ("filter", "return [True] * 4", "gave a list"),
            ("filter", "return t['n']", "gave an Arrow array of int64"),
            ("filter", "return np.ones(4)", "gave a NumPy array of float64 with 1 dimensions"),
            ("filter", "return np.ones((4, 1), bool)", "gave a NumPy array of bool with 2 dimensions"),
            ("filter", "return np.ones(3, bool)", "gave 3 values for rows 0 to 3 of split 'train', expected 4"),
        ],
    )
    def test_something_else_is_refused(self, kind: StepKind, body: str, said: str) -> None:
        with refused(SourceError, f"--{kind} clean:f", said):
            run(one(kind, body))

    def test_a_table_with_other_rows_is_referred_to_filters(self) -> None:
        with pytest.raises(SourceError) as caught:
            run(one("map", "return t.filter(pc.greater(t['n'], 2))"))
        assert "--filter" in caught.value.remedy

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_function_raises_is_said_with_the_rows_and_the_line(self, kind: StepKind) -> None:
        step = one(kind, "return t['nothing']")
        with refused(
            SourceError, f"--{kind} clean:f raised KeyError", "nothing", "rows 0 to 3", "(line 5 of clean.py)"
        ):
            run(step)

    def test_steps_run_in_their_order_and_later_ones_see_what_is_left(self) -> None:
        write(
            f"{HEAD}def twice(t): return t.set_column(1, 'n', pc.multiply(t['n'], 2))\n"
            "def small(t): return pc.less(t['n'], 5)\n"
        )
        twice, small = find(("map", "clean:twice"), ("filter", "clean:small"))
        results = [steps.run(order, TABLE, place="") for order in ([twice, small], [small, twice])]
        assert [table["n"].to_pylist() for table, _ in results] == [[2, 4], [2, 4, 6, 8]]
        assert [kept.tolist() for _, kept in results] == [[0, 1], [0, 1, 2, 3]]

    def test_a_function_is_never_called_without_rows(self) -> None:
        write("def none(t): return t['n'].is_null()\ndef fail(t): raise AssertionError\n")
        _, kept = steps.run(find(("filter", "clean:none"), ("map", "clean:fail")), TABLE, place="")
        assert kept.tolist() == []


def opened(folder: Path, rows: Sequence[dict[str, Any]], found: Sequence[Step]) -> Source:
    return stepped(open_source(SourceConfig(dataset=str(building.source(folder / "data", train=rows)))), found)


def read(split: SplitSource, columns: Sequence[str], segments: Sequence[tuple[int, int]] = ()) -> list[pa.RecordBatch]:
    found = list(split.read(segments or split.ranges, columns))
    wanted = [number for span in segments or split.ranges for number in range(*span)]
    assert [first + index for first, batch in found for index in range(batch.num_rows)] == wanted
    return [batch for _, batch in found]


class TestReading:
    """Rows of a source after the steps."""

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        keep=st.lists(st.booleans(), min_size=2, max_size=40).filter(any),
        cuts=st.lists(st.integers(0, 40), max_size=4),
    )
    def test_rows_keep_their_numbers_and_those_left_out_are_marked(
        self, tmp_path_factory: pytest.TempPathFactory, keep: list[bool], cuts: list[int]
    ) -> None:
        write(UPPER + "def kept(t): return t['keep']\n")
        found = find(("filter", "clean:kept"), ("map", "clean:upper"))
        rows = [{"text": f"row {index}", "keep": value} for index, value in enumerate(keep)]
        split = opened(tmp_path_factory.mktemp("rows"), rows, found).splits["train"]
        edges = sorted({0, len(keep), *(cut for cut in cuts if cut < len(keep))})
        batches = read(split, ["text"], list(itertools.pairwise(edges)))
        texts = [text for batch in batches for text in batch.column("text").to_pylist()]
        assert texts == [f"ROW {index}" if value else None for index, value in enumerate(keep)]
        masks = [marked(batch) for batch in batches]
        left_out = [
            m
            for mask, batch in zip(masks, batches, strict=True)
            for m in (mask if mask is not None else [False] * batch.num_rows)
        ]
        assert left_out == [not value for value in keep]
        assert {without_mark(batch).schema.names[0] for batch in batches} == {"text"}

    def test_without_a_row_left_out_there_is_no_mark(self, folder: Path) -> None:
        write(UPPER)
        split = opened(folder, [{"text": "a"}] * 3, find(("map", "clean:upper"))).splits["train"]
        (batch,) = read(split, ["text"])
        assert batch.schema.names == ["text"]
        assert marked(batch) is None

    def test_columns_of_any_type_can_be_left_out(self, folder: Path) -> None:
        write("def some(t): return t['keep']\n")
        content = {"v": [1.5, 2], "s": {"a": "x", "b": [1]}, "w": ["a"], "m": [{"role": "user"}]}
        rows = [{"keep": index % 3 == 1, **content} for index in range(9)]
        split = opened(folder, rows, find(("filter", "clean:some"))).splits["train"]
        (batch,) = read(split, list(content))
        assert batch.schema.names == [*content, MARK]
        assert without_mark(batch).to_pylist() == [content if row["keep"] else dict.fromkeys(content) for row in rows]

    def test_a_column_may_be_added_replaced_and_dropped(self, folder: Path) -> None:
        write(f"{HEAD}def f(t): return pa.table({{'words': pc.utf8_split_whitespace(t['text']), 'text': t['n']}})\n")
        source = opened(folder, [{"text": "a b", "n": 3}] * 4, find(("map", "clean:f")))
        assert {name: column.kind for name, column in source.columns["train"].items()} == {
            "words": pa.list_(pa.string()),
            "text": pa.int64(),
        }
        (batch,) = read(source.splits["train"], ["text", "words"])
        assert batch.to_pylist()[0] == {"text": 3, "words": ["a", "b"]}

    @pytest.mark.parametrize(("last", "text"), [(None, None), ([], [])])
    def test_a_batch_of_nothing_but_nulls_has_the_columns_type(self, folder: Path, last: Any, text: Any) -> None:
        write(f"{HEAD}def f(t): return pa.table({{'x': pa.array(t['x'].to_pylist())}})\n")
        value = 1 if last is None else [1]
        rows = [{"x": value}] * 600 + [{"x": last}] * 1000
        split = opened(folder, rows, find(("map", "clean:f"))).splits["train"]
        batches = read(split, ["x"], [(0, 600), (600, 1600)])
        assert {str(batch.schema.field("x").type) for batch in batches} <= {
            "int64",
            "list<item: int64>",
            "list<element: int64>",
        }
        assert batches[-1].to_pylist()[-1] == {"x": text}

    def test_another_type_in_some_rows_is_refused(self, folder: Path) -> None:
        write(f"{HEAD}def f(t): return pa.table({{'x': pa.array(t['x'].to_pylist())}})\n")
        body = "def f(t):\n    kind = pa.int64() if t['n'][0].as_py() < 900 else pa.float64()\n"
        write(f"{HEAD}{body}    return pa.table({{'x': t['n'].cast(kind)}})\n")
        split = opened(folder, [{"n": index} for index in range(1000)], find(("map", "clean:f"))).splits["train"]
        with refused(SourceError, "column 'x' as double for rows 950 to 959 of split 'train', and as int64 for others"):
            read(split, ["x"], [(950, 960)])

    def test_a_column_that_is_missing_in_some_rows_is_refused(self, folder: Path) -> None:
        write("def f(t): return t if t['n'][0].as_py() < 900 else t.drop_columns(['text'])\n")
        rows = [{"n": index, "text": "a"} for index in range(1000)]
        split = opened(folder, rows, find(("map", "clean:f"))).splits["train"]
        with refused(SourceError, "no column 'text' for row 950 of split 'train'"):
            read(split, ["text"], [(950, 951)])


def classes(folder: Path) -> str:
    """A saved dataset with class labels, and a split that nobody asks for."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"text": [f"row {index}" for index in range(100)], "label": [index % 2 for index in range(100)]}
    split = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": split, "test": split.remove_columns("label")}).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


class TestClasses:
    """Names of classes are those of the source as long as the values are."""

    @pytest.mark.parametrize(
        ("body", "names"),
        [
            ("return t.set_column(0, 'text', pc.utf8_upper(t['text']))", ["no", "yes"]),
            ("return pa.Table.from_pylist(t.to_pylist())", ["no", "yes"]),
            ("return t.set_column(1, 'label', pc.subtract(1, t['label']))", None),
            ("return t.set_column(1, 'label', t['label'].cast('int32'))", None),
        ],
    )
    def test_of_values_that_a_map_changes_they_are_unknown(
        self, folder: Path, body: str, names: list[str] | None
    ) -> None:
        step = one("map", body)
        source = stepped(open_source(SourceConfig(dataset=classes(folder), splits=("train",))), [step])
        assert source.columns["train"]["label"].names == (names and tuple(names))

    def test_a_filter_leaves_them(self, folder: Path) -> None:
        step = one("filter", "return pc.equal(t['label'], 1)")
        source = stepped(open_source(SourceConfig(dataset=classes(folder), splits=("train",))), [step])
        assert source.columns["train"]["label"].names == ("no", "yes")

    def test_a_split_that_nobody_asks_for_need_not_suit(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        step = one("filter", "return pc.equal(t['label'], 1)")
        source = stepped(open_source(SourceConfig(dataset=classes(folder), splits=("train",))), [step])
        assert source.all_splits.keys() == {"train"}
        assert "'test' is not asked for" in caplog.text
        with refused(SourceError, "raised KeyError", "of split 'test'"):
            stepped(open_source(SourceConfig(dataset=classes(folder))), [step])


ROWS = [{"text": f"row {index % 70}", "n": index, "x": None if index % 5 else float("nan")} for index in range(200)]
DEPENDENT: dict[str, tuple[StepKind, str]] = {
    "a mean": ("map", "return t.set_column(1, 'n', pc.subtract(t['n'], pc.mean(t['n'])))"),
    "a number in the batch": ("map", "return t.append_column('i', pa.array(np.arange(len(t))))"),
    "random numbers": ("map", "return t.append_column('r', pa.array(np.random.default_rng().random(len(t))))"),
    "what came before": ("map", "f.n = getattr(f, 'n', 0) + 1; return t.append_column('c', [[f.n] * len(t)])"),
    "a type by the values": (
        "map",
        "k = pa.int64() if t['n'][0].as_py() else pa.int16(); return t.append_column('k', t['n'].cast(k))",
    ),
    "a column by the values": ("map", "return t if t['n'][0].as_py() else t.append_column('k', t['n'])"),
    "a column in some": ("map", "return t.append_column('k', t['n']) if t['n'][0].as_py() else t"),
    "duplicates": (
        "filter",
        "u, i = np.unique(t['text'].to_numpy(), return_index=True); return np.isin(np.arange(len(t)), i)",
    ),
    "every second row from the mean": ("filter", "return pc.greater(t['n'], pc.mean(t['n']))"),
}


class TestDependence:
    """What a step says of a row depends on that row alone, or it is refused before any work."""

    @pytest.mark.parametrize("name", DEPENDENT)
    def test_a_step_that_depends_on_the_batch_is_refused(self, folder: Path, name: str) -> None:
        step = one(*DEPENDENT[name])
        with pytest.raises(SourceError, match=r"depends on the batch|for others"):
            opened(folder, ROWS, [step])

    def test_the_column_and_the_step_are_named(self, folder: Path) -> None:
        write(f"{HEAD}def f(t): return t\ndef g(t): return t.append_column('i', pa.array(np.arange(len(t))))\n")
        found = find(("map", "clean:f"), ("map", "clean:g"))
        with refused(SourceError, "--map clean:g depends on the batch", "200 sampled rows of split 'train'", "in 'i'"):
            opened(folder, ROWS, found)

    @pytest.mark.parametrize(
        "body",
        [
            "return t.append_column('y', pc.divide(t['x'], 0.0))",
            "return t.append_column('y', pa.array(t['x'].to_pylist(), pa.float32()))",
            "return pa.Table.from_pandas(t.to_pandas())",
        ],
    )
    def test_nan_is_no_difference(self, folder: Path, body: str) -> None:
        assert opened(folder, ROWS, [one("map", body)]).splits["train"].num_rows == 200

    def test_one_row_is_enough(self, folder: Path) -> None:
        assert opened(folder, [{"text": "a"}], [one("map", "return t")]).splits["train"].num_rows == 1


class TestPlanning:
    """What the launcher learns from a sample."""

    def test_a_map_behind_a_filter_that_leaves_one_row_of_many(self, folder: Path) -> None:
        write(UPPER + "def rare(t): return pc.equal(t['n'], 4567)\n")
        rows = [{"text": f"row {index}", "n": index} for index in range(6000)]
        source = opened(folder, rows, find(("filter", "clean:rare"), ("map", "clean:upper")))
        texts = [text for batch in read(source.splits["train"], ["text"]) for text in batch.column(0).to_pylist()]
        assert [(index, text) for index, text in enumerate(texts) if text] == [(4567, "ROW 4567")]

    def test_filters_that_leave_nothing(self, folder: Path) -> None:
        with refused(SourceError, "split 'train'", "--filter clean:f", "leave none of its 200 rows"):
            opened(folder, ROWS, [one("filter", "return np.zeros(len(t), bool)")])

    def test_a_type_that_datasets_does_not_know(self, folder: Path) -> None:
        step = one("map", "return t.append_column('d', pc.run_end_encode(t['n'].combine_chunks()))")
        with refused(SourceError, "column 'd' as run_end_encoded"):
            opened(folder, ROWS, [step])

    def test_a_dictionary_is_read_as_its_values(self, folder: Path) -> None:
        step = one("map", "return t.set_column(0, 'text', t['text'].dictionary_encode())")
        split = opened(folder, ROWS, [step]).splits["train"]
        (batch,) = read(split, ["text"])
        assert batch.column(0).to_pylist() == [row["text"] for row in ROWS]


def test_without_steps_a_source_is_what_it_was(folder: Path) -> None:
    source = open_source(SourceConfig(dataset=str(building.source(folder / "data", train=[{"text": "a"}]))))
    assert stepped(source, ()) is source
