"""What is to be read: the same on every host."""

from __future__ import annotations

import dataclasses

from tfrecord_io.input_pipeline.input_plan import Order, Shuffle
from tfrecord_io.input_pipeline.input_source import Source
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import BoundObjective

__all__ = ["Request"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be read, already checked, the same on every host: a split of one dataset, or of several mixed.

    `manifest` says what is in the records of all sources, and `keep` which of their features of text and bytes are in
    elements. An evaluation has one source.
    """

    manifest: Manifest
    split: str
    sources: tuple[Source, ...]
    global_batch_size: int
    seed: int
    objective: BoundObjective | None
    training: bool
    shuffle: Shuffle
    deterministic: bool
    order: Order
    start_step: int
    keep: tuple[str, ...] = ()
