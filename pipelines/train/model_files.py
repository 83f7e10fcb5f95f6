"""Write and read the files that `predict` and `export` need from a finished training run, besides its weights.

docs/reference/training.md lists these files. model.json is written last: a folder without it has no finished model.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import tensorflow as tf

from pipelines.train.checkpoints import as_json, read_json, write_json
from pipelines.train.config import Pooling, Task
from tfrecord_io import local_paths
from tfrecord_io import manifest as manifests
from tfrecord_io.errors import FormatError, ReaderError
from tfrecord_io.format.json_fields import WRONG, Count, decoded, mapping, text
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.labelled import StartToken

TOKENIZER = "tokenizer"
FINAL, REFERENCE = ("model.keras", "model.weights.h5"), "reference.weights.h5"
_FILE_NAME = "model.json"
_VERSION = 1


def _metrics(value: Any) -> dict[str, float]:
    return {text(name): math.nan if metric is None else float(metric) for name, metric in mapping(value).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """Description of a finished model: the content of model.json.

    pooling: how a row's states become one vector, for classify; otherwise None.
    backbone: `BuiltModel.description`; None for a user's own model.
    metrics: on `eval_split`; empty without an evaluation.
    manifest: of the training data, without splits.
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
    manifest: Annotated[Manifest, lambda value: manifests.parse(json.dumps(value))]

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes, or their numbers if they have no names."""
        return self.manifest.label_names or tuple(map(str, range(self.num_outputs)))


def write(model_dir: str, model: TrainedModel) -> None:
    """Write model.json to a model folder. Raises: OutputError."""
    document = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    document |= {"version": _VERSION, "metrics": as_json(model.metrics)}
    document["manifest"] = json.loads(manifests.dump(model.manifest))
    write_json(model_dir, _FILE_NAME, document)


def read(model_dir: str) -> TrainedModel:
    """Read the description of a finished model from its folder, local or gs://.

    Raises: ReaderError if model.json is missing or not a regular file; FormatError if it is damaged.
    """
    path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
    local_paths.require_regular(path)
    try:
        if (document := mapping(read_json(path)))["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r:.20}, expected {_VERSION}")
        model: TrainedModel = decoded(TrainedModel, document)
        return model
    except tf.errors.OpError as error:
        raise ReaderError(
            f"--model {model_dir}: {error.message}, expected the --model-dir of a finished training run",
            remedy="give the --model-dir of a finished training run; to finish an interrupted run, repeat its command",
        ) from error
    except (*WRONG, FormatError) as error:
        raise FormatError(
            f"{path}: damaged or edited ({error!r:.200})", remedy="run the training run's command again"
        ) from error


def has_tokenizer(folder: str) -> bool:
    return bool(tf.io.gfile.isdir(f"{folder.rstrip('/')}/{TOKENIZER}"))


def copy_tokenizer(folder: str, target: str) -> None:
    """Copy the tokenizer's files in a dataset's or model's folder to the folder `target`, without subfolders.

    Raises: ReaderError if the folder has no tokenizer, or a file is a link.
    """
    source = f"{folder.rstrip('/')}/{TOKENIZER}"
    if not has_tokenizer(folder):
        raise ReaderError(
            f"--model {folder}: the model's folder has no folder {TOKENIZER}/",
            remedy=f"copy the folder tokenizer/ of the dataset to {source}",
        )
    tf.io.gfile.makedirs(target)
    for name in filter(local_paths.is_tokenizers, tf.io.gfile.listdir(source)):
        if not tf.io.gfile.isdir(f"{source}/{name}"):
            local_paths.require_regular(f"{source}/{name}")
            tf.io.gfile.copy(f"{source}/{name}", f"{target}/{name}", overwrite=True)
