"""The commands of `prep-tfrecords` as Python functions: `build`, `plan`, `inspect`, `verify` and `export`.

    import prep_tfrecords

    built = prep_tfrecords.build("imdb", output="out", tokenizer="bert-base-uncased", label_column="label")

`pipelines.python_api` documents and implements the functions. It is imported on first use.
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.python_api import Built, Inspected, Planned, Verified, build, export, inspect, plan, verify

__all__ = ["Built", "Inspected", "Planned", "Verified", "build", "export", "inspect", "plan", "verify"]


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` on first use. Raises: AttributeError for any other name."""
    if name in __all__:
        return getattr(importlib.import_module("pipelines.python_api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _require_own_pipelines() -> None:
    # Another folder may shadow the package `pipelines` that was installed with this one.
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pipelines")
    spec = importlib.util.find_spec("pipelines")
    places = list(spec.submodule_search_locations or [str(spec.origin)]) if spec else ["nothing"]
    if os.path.realpath(ours) not in map(os.path.realpath, places):
        raise ImportError(
            f"`import pipelines` finds {places[0]}, but prep_tfrecords needs the package in {ours}; start Python in "
            "another folder, rename the other package, or remove it from PYTHONPATH"
        )


_require_own_pipelines()
