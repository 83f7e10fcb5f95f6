"""Modules with a user's functions, found as `--map` and `--filter` find them."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pipelines.prepare.options.config import FunctionKind, FunctionOption
from pipelines.prepare.sources.rows import user_functions
from pipelines.prepare.sources.rows.function_check import apply_functions
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tests.prepare.sources.stored import Stored
from tfrecord_io.errors import PrepError

HEAD = "import numpy as np\nimport pyarrow as pa\nimport pyarrow.compute as pc\n"
UPPER = HEAD + "def upper(t): return t.set_column(0, 'text', pc.utf8_upper(t['text']))\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate current directory, removed from the search path afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "clean") -> Path:
    path = Path(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def find(*wanted: tuple[FunctionKind, str]) -> tuple[UserFunction, ...]:
    return user_functions.find([FunctionOption(kind=kind, spec=spec) for kind, spec in wanted])


def one(kind: FunctionKind, body: str) -> UserFunction:
    write(f"{HEAD}def f(t):\n    {body}\n")
    return find((kind, "clean:f"))[0]


@contextlib.contextmanager
def refused(kind: type[PrepError], *parts: str) -> Iterator[None]:
    """Expect an error of this kind, with a remedy and all `parts` in its cause."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    assert caught.value.remedy
    assert [part for part in parts if part not in caught.value.cause] == [], caught.value.cause


def changed(stored: Stored, functions: Sequence[UserFunction], *, requested: Sequence[str] = ("train",)) -> Stored:
    readers, columns = apply_functions(
        stored.readers, stored.groups, stored.columns, tuple(functions), requested=requested
    )
    return Stored(groups=stored.groups, readers=readers, columns=columns)
