"""A fast engine whose tokens once differed from the reference's is not used again in that job.

OUT/.prep/FINGERPRINT/engine_mismatch.json says so. Whoever finds the difference writes it, every worker looks for it
before a shard, and no shard that a fast engine made before comes into a manifest: they are made again.
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


class _Placed(Protocol):
    @property
    def root(self) -> str: ...

    def work_path(self, *parts: str) -> str: ...


def record(job: _Placed, mismatch: EngineMismatch) -> None:
    """Tells every worker of the job, and whoever resumes it."""
    content = json.dumps(mismatch.to_json(), sort_keys=True) + "\n"
    storage.write_bytes(job.work_path(_FILE), content.encode(), inside=job.root)


def read(job: _Placed) -> EngineMismatch | None:
    """The recorded mismatch, if there is one. A damaged file still counts as one, of an unknown engine."""
    return read_in(job.work_path())


def read_in(folder: str) -> EngineMismatch | None:
    """As `read`, given the job's work folder."""
    try:
        fields = mapping(json_fields.load(storage.read_bytes(storage.join(folder, _FILE))))
        return EngineMismatch(
            engine=text(fields["engine"]), split=text(fields["split"], NAME), row=count(fields["row"])
        )
    except FileNotFoundError:
        return None
    except WRONG:
        return EngineMismatch(engine="unknown", split="unknown", row=0)
