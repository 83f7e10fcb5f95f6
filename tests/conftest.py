"""What all tests share: a private, offline home for the Hugging Face libraries, and the trained tokenizers.

Libraries read their environment once, when they are imported, so it is set while pytest loads this file,
before any test module is. Processes that a test starts inherit it.

What collection imports and makes, some 800,000 objects, stays until the end. The garbage collector looks at none of
it: neither while it grows, which would take a quarter of that time, nor afterwards.
"""

from __future__ import annotations

import collections
import gc
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import HealthCheck, settings

from tests.support import limits

if TYPE_CHECKING:
    from tests.support.tokenizers_zoo import Zoo

_HOME = tempfile.mkdtemp(prefix="prep-tfrecords-tests-")


def _isolate() -> None:
    early = {"datasets", "huggingface_hub", "transformers"} & sys.modules.keys()
    if early:
        raise pytest.UsageError(
            f"{', '.join(sorted(early))} imported before tests/conftest.py: tests would use your cache"
        )
    os.environ.update(
        JAX_COMPILATION_CACHE_DIR=os.path.join(_HOME, "jax"),
        HF_HOME=_HOME,
        HF_HUB_CACHE=os.path.join(_HOME, "hub"),
        HF_DATASETS_CACHE=os.path.join(_HOME, "datasets"),
        HF_MODULES_CACHE=os.path.join(_HOME, "modules"),
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        PYTEST_TIMEOUT=str(limits.TEST),
        # TensorFlow's notes on CPU features are no finding, and JAX sets it to 1 when a test imports it.
        TF_CPP_MIN_LOG_LEVEL="2",
        # JAX looks for a TPU otherwise, and TPU's library ends the process on a machine without /sys.
        JAX_PLATFORMS="cpu",
        # A step of bert-tiny compiles in 10 s of CPU for 19.
        XLA_FLAGS="--xla_backend_optimization_level=0",
        # gcsfs decides at import, for the whole process. It would ask Google for the type of our emulator's buckets,
        # which takes minutes.
        GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false",
    )


_isolate()
# A build syncs 60 files and folders, each in milliseconds; tests/prepare/storage/test_durability.py shows which.
os.fsync = lambda fd: None
gc.disable()
# How long an example takes says more about what else the machine does than about us.
settings.register_profile(
    "ours", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("ours")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of fast engines where builds use none: engines are qualified for one release of `tokenizers`."""
    if item.get_closest_marker("engines"):
        from pipelines.prepare.tokenize.engines.base import TOKENIZERS_TRIED, NotQualified, require_release

        try:
            require_release("tokenizers", tried=TOKENIZERS_TRIED)
        except NotQualified as error:
            pytest.skip(f"builds use the reference here: {error}")


@pytest.hookimpl(tryfirst=True)  # before -m looks at markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each quick test, mark all cases but the first one of each kind: of a layout, an engine, an export, a task."""
    kinds, covered = _kinds(), collections.defaultdict[str, set[str]](set)
    for item in items:
        if not item.get_closest_marker("slow"):
            test, _, case = item.nodeid.partition("[")
            words = f" {case.removesuffix(']')} "
            kinds_of_case = {"", *(kind for kind in kinds if re.search(rf"[-_ ]{kind}[-_ ]", words))}
            if kinds_of_case <= covered[test]:
                item.add_marker("further")
            covered[test] |= kinds_of_case
    _spread(items)


def _kinds() -> set[str]:
    from pipelines.prepare.export.export_settings import ExportFormat
    from pipelines.prepare.options.config import EngineName
    from pipelines.prepare.options.layout_config import LayoutName
    from pipelines.train.config import Backend, Task

    return {name for names in (LayoutName, EngineName, ExportFormat, Task, Backend) for name in get_args(names)}


def _spread(items: list[pytest.Item]) -> None:
    """Spread the modules that call themselves `longest` evenly: each process of `scripts/check` begins with one.

    At the end, several processes would share such a module, and each would make its fixtures of minutes.
    """
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    longest = [group for group in modules.values() if group[0].get_closest_marker("longest")]
    others = [item for group in modules.values() if group not in longest for item in group]
    share = -(-len(items) // max(1, len(longest)))
    items[:] = []
    for some in longest:
        room = max(0, share - len(some))
        items += [*some, *others[:room]]
        del others[:room]
    items += others


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """`zoo.path(kind)` and `zoo.tokenizer(kind)` for each kind of tests.support.tokenizers_zoo."""
    from tests.support.tokenizers_zoo import Zoo

    return Zoo(tmp_path_factory.mktemp("zoo"))
