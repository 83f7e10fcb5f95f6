"""What the fork server imports: all that a build imports on its way, and numba's compiler, which loads itself when it
is first used. No thread is started by that.
"""

from __future__ import annotations

import contextlib
import importlib
import logging

import numba
import numpy as np

__all__: list[str] = []

_LIBRARIES = (
    "apache_beam.typehints.intrinsic_one_ops",
    "datasets.packaged_modules.arrow.arrow",
    "datasets.packaged_modules.json.json",
    "grpc._utilities",
    "multiprocessing.synchronize",
    "rich._emoji_codes",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_fast",
    "pipelines.cli.commands",
    "pipelines.prepare.launch.launcher",
    "pipelines.prepare.beam.pipeline",
    "pipelines.cli.report",
    "pipelines.prepare.audit.verify",
)


@numba.njit
def _first(values):  # type: ignore[no-untyped-def]
    return values[0]


# As in the command line: without a handler, a library's warning at import would be printed.
logging.getLogger().addHandler(logging.NullHandler())
for _name in _LIBRARIES:
    with contextlib.suppress(ImportError):  # of another version, which imports what it has when it needs it
        importlib.import_module(_name)
import transformers  # noqa: E402

# Attributes that are modules of their own until they are asked for.
_ = (transformers.AutoConfig, transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast)
_first(np.zeros(1))
