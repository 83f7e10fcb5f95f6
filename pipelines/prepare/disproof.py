"""A fast engine that has given other tokens than the reference, once, is not used in that job again.

OUT/.prep/FINGERPRINT/disproof.json says so: whoever finds the difference leaves it there, every worker looks for it
before a shard, and no shard that a fast engine made before comes into a manifest: they are made again.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Protocol

from pipelines.prepare import storage

__all__ = ["Disproof", "leave", "read"]

_FILE = "disproof.json"


class _Placed(Protocol):
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
    text = json.dumps(disproof.to_json(), sort_keys=True) + "\n"
    storage.write_bytes(job.work_path(_FILE), text.encode())


def read(job: _Placed) -> Disproof | None:
    """What somebody has left. A damaged file says no less, only not of whom."""
    try:
        fields = json.loads(storage.read_bytes(job.work_path(_FILE)))
        return Disproof(engine=str(fields["engine"]), split=str(fields["split"]), row=int(fields["row"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return Disproof(engine="unknown", split="unknown", row=0)
