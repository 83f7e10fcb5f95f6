"""A fast engine that has given other tokens than the reference, once, is not used in that job again.

OUT/.prep/FINGERPRINT/disproof.json says so: whoever finds the difference leaves it there, every worker looks for it
before a shard, and no shard that a fast engine made before comes into a manifest: they are made again.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from pipelines.prepare import storage
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import NAME, WRONG, count, mapping, text

__all__ = ["Disproof", "leave", "read", "read_in"]

_FILE = "disproof.json"


class _Placed(Protocol):
    @property
    def root(self) -> str: ...

    def work_path(self, *parts: str) -> str: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disproof:
    """Which engine gave other tokens than the reference, and for which row (its number in the split)."""

    engine: str
    split: str
    row: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)


def leave(job: _Placed, disproof: Disproof) -> None:
    """Says it to every worker of the job, and to those that go on with it later."""
    content = json.dumps(disproof.to_json(), sort_keys=True) + "\n"
    storage.write_bytes(job.work_path(_FILE), content.encode(), inside=job.root)


def read(job: _Placed) -> Disproof | None:
    """What somebody has left. A damaged file says no less, only not of whom."""
    return read_in(job.work_path())


def read_in(folder: str) -> Disproof | None:
    """The same, from the job's own folder."""
    try:
        fields = mapping(json_fields.load(storage.read_bytes(storage.join(folder, _FILE))))
        return Disproof(engine=text(fields["engine"]), split=text(fields["split"], NAME), row=count(fields["row"]))
    except FileNotFoundError:
        return None
    except WRONG:
        return Disproof(engine="unknown", split="unknown", row=0)
