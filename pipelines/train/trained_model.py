"""The description of a finished model in model.json."""

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
    return {text(name): math.nan if metric is None else float(metric) for name, metric in mapping(value).items()}


def _manifest(value: Any) -> Manifest:
    return manifests.parse(json.dumps(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Description of a finished model.

    pooling: as in `BuiltModel`. backbone: KerasHub's class and config, None for a user's own model. manifest: the
    dataset's, without splits. metrics: on `eval_split`, if any.
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
        """Names of the classes, by default their numbers."""
        return self.manifest.label_names or tuple(map(str, range(self.num_outputs)))
