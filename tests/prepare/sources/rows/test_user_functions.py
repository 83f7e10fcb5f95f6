"""The user's functions: lookup, pinned properties, and allowed results."""

import dataclasses
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.prepare.options.config import FunctionKind, FunctionOption
from pipelines.prepare.sources.rows import user_functions
from pipelines.prepare.sources.rows.reading import RowFunctions
from pipelines.prepare.sources.rows.user_functions import UserFunction
from prep_tfrecords import build
from tests import building
from tests.support import seams
from tests.support.functions import HEAD, UPPER, find, folder, one, refused, write
from tfrecord_io.errors import ConfigError, FormatError, SourceError

__all__ = ["folder"]

LONG = HEAD + "def long(t): return pc.greater(pc.utf8_length(t['text']), 2)\n"
TABLE = pa.table({"text": ["a", "bbb", None, "cccc"], "n": [1, 2, 3, 4]})
KINDS: tuple[FunctionKind, ...] = ("map", "filter")


def run(function: UserFunction, table: pa.Table = TABLE) -> Any:
    return user_functions.call(function, table, where="rows 0 to 3 of split 'train'")


class TestFinding:
    @pytest.mark.parametrize("kind", ["map", "filter"])
    @pytest.mark.parametrize("argument", ["token='abcd'", "'hf_notforyou12345678'", "'https://me:hush@host/x'"])
    def test_an_argument_that_looks_like_a_credential_is_refused(self, kind: FunctionKind, argument: str) -> None:
        with refused(ConfigError, f"--{kind} clean:f: an argument looks like a credential"):
            find((kind, f"clean:f({argument})"))

    def test_a_file_below_it_without_executing_the_packages_above(self) -> None:
        write("raise SystemExit('not me')", "mine.__init__")
        write(UPPER, "mine.own.clean")
        (function,) = find(("map", "mine.own.clean:upper"))
        assert run(function)["text"].to_pylist() == ["A", "BBB", None, "CCCC"]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "spec", ["clean", "clean:", ":f", "a b:f", "clean.py:f:g", "./clean:f", "clean:a.b", "1:f"]
    )
    def test_a_spec_is_module_and_function(self, kind: FunctionKind, spec: str) -> None:
        with refused(ConfigError, f"--{kind}", repr(spec), "package.module:function"):
            FunctionOption(kind=kind, spec=spec)

    @pytest.mark.parametrize("name", ["nowhere.at.all", "os.nothing"])
    def test_a_module_that_is_not_there(self, name: str, folder: Path) -> None:
        with refused(ConfigError, f"--map {name}:f", f"no module {name}", str(folder)):
            find(("map", f"{name}:f"))

    def test_a_module_without_source_text(self) -> None:
        with refused(ConfigError, "--filter math:f", "no source text"):
            find(("filter", "math:f"))

    def test_a_function_that_is_not_there(self) -> None:
        write("third = 3\ndef first(t): ...\ndef second(t): ...\n")
        with pytest.raises(ConfigError, match="clean has no function 'third'") as caught:
            find(("map", "clean:third"))
        assert caught.value.remedy == "choose among first, second"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("def f(:\n", "SyntaxError"),
            ("\nimport nothing_of_this_name\n", "No module named 'nothing_of_this_name' (line 2 of clean.py)"),
            ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ],
    )
    def test_a_module_that_cannot_be_executed(self, text: str, words: str) -> None:
        path = write(text)
        with refused(ConfigError, f"{path.absolute()} cannot be executed", words):
            find(("map", "clean:f"))


class TestPinning:
    def test_an_edit_meanwhile_and_a_file_that_is_gone_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = one("map", "return t")
        after = one("map", "return t.append_column('new', t['n'])")
        Path("clean.py").unlink()
        seams.put(monkeypatch, modules={})  # as in a process that it travels to
        assert run(before).column_names == ["text", "n"]
        assert run(pickle.loads(pickle.dumps(after))).column_names == ["text", "n", "new"]

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

    def test_stored_functions_come_back(self) -> None:
        write(UPPER + LONG)
        functions = find(("map", "clean:upper"), ("filter", "clean:long"))
        stored = json.loads(json.dumps([dataclasses.asdict(function) for function in functions]))
        again = user_functions.restore(stored, expected=[one.identity() for one in functions], where="source.json")
        assert again == functions

    @pytest.mark.parametrize("damage", [[], None, 3, [{}], [3], "source", "spec"])
    def test_stored_functions_that_are_not_those_of_the_manifest(self, damage: Any) -> None:
        function = one("map", "return t")
        stored = [{**dataclasses.asdict(function), damage: "x:y"}] if isinstance(damage, str) else damage
        with refused(FormatError, "source.json", "--map clean:f"):
            user_functions.restore(stored, expected=[function.identity()], where="source.json")


class TestCalling:
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
        ("kind", "body", "words"),
        [
            ("map", "return t.slice(1)", "returned 3 rows for rows 0 to 3 of split 'train', expected 4"),
            ("map", "return None", "returned an object of type NoneType"),
            ("map", "return t['text']", "returned an object of type ChunkedArray of string"),
            ("map", "return t.append_column('n', t['n'])", "returned columns of the same name"),
            ("filter", "return t", "returned an object of type Table"),
            ("filter", "return t['n']", "returned an object of type ChunkedArray of int64"),
            ("filter", "return np.ones(4)", "returned an object of type ndarray of float64"),
            ("filter", "return np.ones((4, 1), bool)", "returned an object of type ndarray of bool"),
            ("filter", "return np.ones(3, bool)", "returned 3 rows for rows 0 to 3 of split 'train', expected 4"),
        ],
    )
    def test_something_else_is_refused(self, kind: FunctionKind, body: str, words: str) -> None:
        with refused(SourceError, f"--{kind} clean:f", words):
            run(one(kind, body))

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_function_raises_is_said_with_the_rows_and_the_line(self, kind: FunctionKind) -> None:
        function = one(kind, "return t['nothing']")
        words = (f"--{kind} clean:f raised KeyError", "nothing", "rows 0 to 3", "(line 5 of clean.py)")
        with refused(SourceError, *words):
            run(function)

    def test_a_function_is_never_called_without_rows(self) -> None:
        write("def none(t): return t['n'].is_null()\ndef fail(t): raise AssertionError\n")
        functions = find(("filter", "clean:none"), ("map", "clean:fail"))
        changes = RowFunctions(functions=functions, schema=TABLE.schema, share=1.0)
        _, reasons = changes.apply(TABLE.to_batches()[0], ["text"], where="")
        assert set(reasons) == {"filtered"}


# Functions given as objects: by name if they are a module's, else by their own text, which must be complete.

_LONGEST = 40


def is_short(table: pa.Table) -> pa.Array:
    return pc.less(pc.utf8_length(table["text"]), _LONGEST)


def test_a_function_of_a_module_is_named() -> None:
    option = user_functions.option_of("filter", is_short)
    assert (option.spec, option.source) == ("tests.prepare.sources.rows.test_user_functions:is_short", None)


@pytest.mark.slow
def test_a_function_of_a_notebook_runs_from_its_own_text(tmp_path: Path) -> None:
    def keep_good(table: pa.Table) -> pa.Array:
        return pc.match_substring(table["text"], "good")

    def without_good(table: pa.Table) -> pa.Table:
        return table.set_column(0, "text", pc.replace_substring(table["text"], "good", "fine"))

    rows = pa.table({"text": ["a good book", "a bad book", "good"]})
    options: dict[str, Any] = {"tokenizer": building.tokenizer(), "max_length": 8, "workers": 1}
    made = build(rows, output=tmp_path / "out", filter=keep_good, map=[without_good], **options)
    assert [step.get("filter") or step["map"] for step in made.manifest.options["functions"]] == [
        "__main__:keep_good",
        "__main__:without_good",
    ]
    assert made.manifest.splits["train"].num_examples == 2
    assert build(rows, output=tmp_path / "out", filter=keep_good, map=[without_good], **options).shards_made == 0


def _with_closure() -> Any:
    limit = 3

    def is_long(table: pa.Table) -> pa.Array:
        return pc.greater(pc.utf8_length(table["text"]), limit)

    return is_long


def _with_global() -> Any:
    def is_long(table: pa.Table) -> pa.Array:
        return pc.greater(pc.utf8_length(table["text"]), _LONGEST)

    return is_long


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (_with_closure(), "the function uses names defined outside of it (limit)"),
        (_with_global(), "the function uses names defined outside of it (_LONGEST)"),
        (lambda table: table, "expected a function with a name"),
        (len, "expected a function with a name"),
    ],
    ids=["closure", "global", "lambda", "builtin"],
)
def test_what_has_no_complete_text_is_refused_with_a_remedy(function: Any, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        user_functions.option_of("map", function)
    assert cause in raised.value.cause
    assert raised.value.remedy
