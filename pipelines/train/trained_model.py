"""Description of a finished model, in its folder's model.json."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pipelines.train.config import Pooling, Task
from tfrecord_io import manifest as manifests
from tfrecord_io.format.json_fields import Count, mapping, text
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.labelled import StartToken


def _metrics(value: Any) -> dict[str, float]:
    return {text(name): math.nan if each is None else float(each) for name, each in mapping(value).items()}


def _manifest(value: Any) -> Manifest:
    return manifests.parse(json.dumps(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Description of a finished model. `pooling`: of rows for classify, else None.

    `backbone`: KerasHub's class and config; None for a user's own model. `manifest`: of the data, without splits.
    `metrics`: on `eval_split`; {} and None without one.
    """

    task: Task
    model: str
    pooling: Pooling | None
    backbone: Annotated[Mapping[str, Any], mapping] | None
    num_outputs: Count
    regression: bool
    mask_probability: float
    beta: float
    decoder_start: StartToken | None
    precision: str
    steps: Count
    eval_split: str | None
    metrics: Annotated[Mapping[str, float], _metrics]
    manifest: Annotated[Manifest, _manifest]

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each class, by default its number."""
        return self.manifest.label_names or tuple(map(str, range(self.num_outputs)))
