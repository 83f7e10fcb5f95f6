"""The exception tree: as drawn, picklable, and nothing lost on the way."""

import pickle
import re

import pytest

from tfrecord_io import errors
from tfrecord_io.errors import PrepError


def subclasses(root: type[PrepError]) -> list[type[PrepError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in subclasses(child))]


EVERY = [kind for kind in subclasses(PrepError) if kind.__module__ == errors.__name__]


def drawn_tree() -> dict[str, str]:
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"([│├└─ ]*)([A-Z]\w+Error)\b", line):
            depth = len(match.group(1)) // 4
            above = [*above[:depth], match.group(2)]
            if depth:
                parents[match.group(2)] = above[depth - 1]
    return parents


def test_the_tree_is_as_the_docstring_draws_it() -> None:
    assert drawn_tree() == {kind.__name__: kind.__bases__[0].__name__ for kind in EVERY if kind is not PrepError}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("remedy", ["a remedy", ""])
def test_an_error_pickles_with_cause_and_remedy(kind: type[PrepError], remedy: str) -> None:
    error = kind("a cause; with a semicolon", remedy=remedy)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.cause, again.remedy) == (error.cause, error.remedy)
    assert str(again) == str(error)


def test_as_text_an_error_is_its_cause_and_its_remedy() -> None:
    assert str(PrepError("cause", remedy="remedy")) == "cause; remedy"
    assert str(PrepError("cause")) == "cause"
