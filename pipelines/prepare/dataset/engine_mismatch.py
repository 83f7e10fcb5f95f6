"""The record that a fast engine gave other tokens than the reference tokenizer, which bans it from the rest of the job.

Whoever finds the difference writes OUT/.prep/FINGERPRINT/engine_mismatch.json. Every worker looks for it before each
shard. Shards that a fast engine made before are made again and never come into a manifest.
"""

from __future__ import annotations

import json
from typing import Protocol

from pipelines.prepare import storage
from pipelines.prepare.crosscheck.comparing import EngineMismatch
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, count, mapping, text

__all__ = ["read", "read_in", "record"]

_FILE = "engine_mismatch.json"


class _HasWorkFolder(Protocol):
    @property
    def root(self) -> str: ...

    def work_path(self, *parts: str) -> str: ...


def record(job: _HasWorkFolder, mismatch: EngineMismatch) -> None:
    """Record a mismatch for every worker of the job, and for later runs of it."""
    content = json.dumps(mismatch.to_json(), sort_keys=True) + "\n"
    storage.write_bytes(job.work_path(_FILE), content.encode(), inside=job.root)


def read(job: _HasWorkFolder) -> EngineMismatch | None:
    """Return the recorded mismatch, or None. A damaged file counts as a mismatch of an unknown engine."""
    return read_in(job.work_path())


def read_in(folder: str) -> EngineMismatch | None:
    """Return the same as `read`, given the job's work folder."""
    try:
        fields = mapping(json_fields.load(storage.read_bytes(storage.join(folder, _FILE))))
        return EngineMismatch(
            engine=text(fields["engine"]), split=text(fields["split"], NAME), row=count(fields["row"])
        )
    except FileNotFoundError:
        return None
    except WRONG:
        return EngineMismatch(engine="unknown", split="unknown", row=0)
