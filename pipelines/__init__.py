"""The programs on both sides of the format: `prepare` writes datasets, `train` trains models on them.

`build`, `plan`, `inspect`, `verify` and `export` are the commands as functions (see `python_api`), imported on first
use:

    from pipelines import build
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.python_api import build, export, inspect, plan, verify

__all__ = ["build", "export", "inspect", "plan", "verify"]


def __getattr__(name: str) -> Any:
    """Import a function of `__all__` on first use. Raises: AttributeError for any other name."""
    if name in __all__:
        return getattr(importlib.import_module("pipelines.python_api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
