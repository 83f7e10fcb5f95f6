"""Check an output before a build: try each storage operation once, on a small probe file.

IAM roles alone do not show whether a build will work: organization policies and object holds also forbid operations.
"""

import contextlib
import os
import platform
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import tfrecord_io
from pipelines.prepare import storage
from pipelines.prepare.options.addresses import bucket_of
from pipelines.prepare.process import cores
from pipelines.prepare.runners import shipping
from pipelines.prepare.storage.gcs_account import Check
from pipelines.prepare.storage.storage_errors import store_of
from tfrecord_io.errors import OutputError
from tfrecord_io.shown import without_secrets

_OTHERS = "apache-beam fsspec gcsfs google-cloud-storage jax keras keras-hub numba numpy protobuf pyarrow tensorflow"
PACKAGES = (*shipping.INSTALLED, *shipping.IMPORTED, *_OTHERS.split())
# Room for a few shards of the default size.
_LEAST_FREE_BYTES = 1 << 30


def describe_machine() -> dict[str, str]:
    """Return facts for a bug report by name: package versions, Python, cores and memory."""
    facts = {
        "prep-tfrecords": tfrecord_io.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(cores.cores()),
        "memory": f"{cores.memory_bytes() / 1e9:.1f} GB",
    }
    for name in sorted(PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[name] = metadata.version(name)
    return facts


def diagnose(output: str, *, region: str | None = None) -> Iterator[Check]:
    """Check whether a build can write to the folder or address `output`: yield the result of each check.

    Ends early if a check fails that all others depend on. `region`: region or zone of the TPU that will read the
    output. Raises: ConfigError.
    """
    if bucket_of(output) is not None:
        for check in store_of(output).checks(output, region=region):
            yield check
            if check.name == "bucket" and check.ok is False:
                return
    if (folder := storage.local_path(output)) is None:
        yield from _operation_checks(output)
        return
    existing = folder
    while not os.path.lexists(existing):  # a check makes no folder
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        yield Check("folder", False, f"{existing} is not a folder", "choose another --output")
        return
    yield Check("folder", True, "exists" if existing == folder else f"will be made in {existing}")
    yield from _operation_checks(existing)
    free = storage.free_bytes(existing) or 0
    remedy = "" if free >= _LEAST_FREE_BYTES else "free some space, or choose an --output on another disk"
    yield Check("space", not remedy, f"{free / 1e9:.1f} GB free", remedy)


def _operation_checks(folder: str) -> Iterator[Check]:
    # Listings skip files with this prefix, and the next build deletes a probe that a killed check left.
    probe = storage.join(folder, f"{storage.PARTIAL}doctor-{uuid.uuid4().hex}")
    operations: dict[str, Callable[[], Any]] = {
        "write": lambda: storage.write_bytes(probe, b"probe"),
        "read": lambda: storage.read_bytes(probe),
        "list": lambda: storage.list_names(folder),
        "delete": lambda: storage.delete(probe),
    }
    for name, operation in operations.items():
        yield (done := _attempt(name, operation))
        if name == "write" and not done.ok:
            return


def _attempt(name: str, operation: Callable[[], Any]) -> Check:
    try:
        operation()
    except OutputError as error:
        return Check(name, False, without_secrets(error.cause), without_secrets(error.remedy))
    return Check(name, True, "allowed")
