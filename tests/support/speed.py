"""Which of a test's parameters `scripts/check --fast` takes."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[object], *fast: object) -> list[Any]:
    """Parameters of a test: all of `values`, those that aren't in `fast` marked slow."""
    return [pytest.param(value, marks=() if value in fast else pytest.mark.slow) for value in values]
