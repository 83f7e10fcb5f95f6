"""Functions given as objects: by name if they are a module's, else by their own text, which must be complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines import build
from pipelines.prepare.sources.rows import given_functions
from tests import building
from tfrecord_io.errors import ConfigError

_LONGEST = 40


def is_short(table: pa.Table) -> pa.Array:
    """A filter of this module."""
    return pc.less(pc.utf8_length(table["text"]), _LONGEST)


def test_a_function_of_a_module_is_named() -> None:
    found = given_functions.option_of("filter", is_short)
    assert (found.spec, found.source) == ("tests.prepare.sources.rows.test_given_functions:is_short", None)


def test_a_function_of_a_notebook_runs_from_its_own_text(tmp_path: Path) -> None:
    def keep_good(table: pa.Table) -> pa.Array:
        return pc.match_substring(table["text"], "good")

    def without_good(table: pa.Table) -> pa.Table:
        return table.set_column(0, "text", pc.replace_substring(table["text"], "good", "fine"))

    rows = pa.table({"text": ["a good book", "a bad book", "good"]})
    options: dict[str, Any] = {"tokenizer": building.tokenizer(), "max_length": 8, "workers": 1}
    made = build(rows, output=tmp_path / "out", filter=keep_good, map=[without_good], **options)
    assert [step.get("filter") or step["map"] for step in made.manifest.options["steps"]] == [
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
        (_with_closure(), "it uses limit"),
        (_with_global(), "it uses _LONGEST"),
        (lambda table: table, "expected a function with a name"),
        (len, "expected a function with a name"),
    ],
    ids=["closure", "global", "lambda", "builtin"],
)
def test_what_has_no_complete_text_is_refused_with_a_remedy(function: Any, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        given_functions.option_of("map", function)
    assert cause in raised.value.cause
    assert raised.value.remedy
