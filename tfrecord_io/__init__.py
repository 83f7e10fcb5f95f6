"""Read datasets of TFRecord shards, and write and read their records.

`reader`, `buckets`, `mixture` and `readiness` need TensorFlow, and `objectives` needs it for tensors. Modules are
imported on first use, so `import tfrecord_io` is enough:

    data = tfrecord_io.reader.open("gs://bucket/dataset")
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfrecord_io import buckets as buckets
    from tfrecord_io import errors as errors
    from tfrecord_io import examples as examples
    from tfrecord_io import manifest as manifest
    from tfrecord_io import mixture as mixture
    from tfrecord_io import objectives as objectives
    from tfrecord_io import random_access as random_access
    from tfrecord_io import reader as reader
    from tfrecord_io import readiness as readiness
    from tfrecord_io import records as records
    from tfrecord_io import schema as schema

__version__ = "0.1.0"

_MODULES = frozenset(
    {
        *("buckets", "errors", "examples", "manifest", "mixture", "objectives"),
        *("random_access", "reader", "readiness", "records", "schema"),
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
