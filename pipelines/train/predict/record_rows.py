"""Which source row each record is, as far as it can be known here.

The feature `source_row` says it where rows may become several records. Where each is one, the plan beside the dataset
says it. That plan belongs to the preparing side, which alone knows how a build permutes rows: this module is the one
place of the trainer that asks it (see tests/project/test_rooms.py).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tfrecord_io.errors import PrepError
from tfrecord_io.reader import Data

__all__ = ["Unknown", "of_split"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown:
    """Why the rows are not known, and what would help."""

    cause: str
    remedy: str


def of_split(data: Data, split: str) -> np.ndarray | Unknown:
    """The number of each record's row in the source's split, int64 [N], records in the order of their shards."""
    from pipelines.prepare.audit import record_rows

    try:
        return record_rows.record_rows(data.root, data.manifest, split)
    except PrepError as error:
        return Unknown(cause=error.cause, remedy=error.remedy)
    except (KeyError, ValueError, OSError) as error:  # of a manifest that another program wrote
        return Unknown(cause=f"{data.root}: {error!r:.200}", remedy="build the dataset with prep-tfrecords")
