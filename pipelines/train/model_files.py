"""Write and read the files of a finished training run that `predict` and `export` need, besides the weights.

    MODEL_DIR/tokenizer/              the dataset's tokenizer
    MODEL_DIR/reference.weights.h5    the reference's weights, for dpo
    MODEL_DIR/model.json              the fields of `TrainedModel`; written last

Without model.json, the folder has no finished model.
"""

import dataclasses
import json
from collections.abc import Mapping

import tensorflow as tf

from pipelines.train.checkpoints import as_json, write_json
from pipelines.train.models import BuiltModel
from pipelines.train.setup import TrainingSetup
from pipelines.train.tasks import decoder_start
from pipelines.train.trained_model import TrainedModel
from tfrecord_io import local_paths
from tfrecord_io import manifest as manifests
from tfrecord_io.errors import FormatError, ReaderError
from tfrecord_io.format.json_fields import WRONG, decoded, load, mapping

TOKENIZER = "tokenizer"
REFERENCE = "reference.weights.h5"
_FILE_NAME = "model.json"
_VERSION = 1
_MOST_BYTES = 64 << 20  # of model.json, which has all label names
_SOURCE = ("kind", "name", "revision")  # no paths, no row ranges


def describe(job: TrainingSetup, *, built: BuiltModel, steps: int, metrics: Mapping[str, float]) -> TrainedModel:
    """Describe a finished model."""
    config, manifest = job.config, job.data.manifest
    kept = {name: manifest.source[name] for name in _SOURCE if name in manifest.source}
    return TrainedModel(
        task=config.task,
        model=config.model,
        pooling=built.pooling,
        backbone=built.description,
        num_outputs=job.task.num_outputs,
        regression=job.task.regression,
        mask_probability=config.mask_probability,
        beta=getattr(job.task, "beta", 1.0),
        decoder_start=decoder_start(config) if job.task.kind.backbone == "encoder-decoder" else None,
        precision=config.precision or "float32",
        steps=steps,
        eval_split=job.eval_split,
        metrics=dict(metrics),
        manifest=dataclasses.replace(manifest, splits={}, source=kept, options={}, engines={}),
    )


def write(model_dir: str, model: TrainedModel) -> None:
    """Write model.json. Raises: OutputError if it cannot be written."""
    document = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    document |= {"version": _VERSION, "metrics": as_json(model.metrics)}
    document["manifest"] = json.loads(manifests.dump(model.manifest))
    write_json(model_dir, _FILE_NAME, document)


def read(model_dir: str) -> TrainedModel:
    """Read the description of a finished model, local or gs://.

    Raises: ReaderError if model.json is missing or not a regular file; FormatError if it is damaged.
    """
    path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
    local_paths.require_regular(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if file.size() > _MOST_BYTES:
                raise FormatError(f"{path}: {file.size():,} bytes, expected at most {_MOST_BYTES:,}")
            content = file.read()
    except tf.errors.OpError as error:
        raise ReaderError(
            f"--model {model_dir}: {error.message}, expected the --model-dir of a finished training run",
            remedy="give the --model-dir of a finished training run; to finish an interrupted run, repeat its command",
        ) from error
    try:
        if (document := mapping(load(content)))["version"] != _VERSION:
            raise ValueError(f"version {document['version']!r:.20}, expected {_VERSION}")
        model: TrainedModel = decoded(TrainedModel, document)
        return model
    except (*WRONG, FormatError) as error:
        raise FormatError(
            f"{path}: damaged or edited ({error!r:.200})", remedy="run the training run's command again"
        ) from error


def has_tokenizer(folder: str) -> bool:
    """Return whether a dataset or model folder has a tokenizer."""
    return bool(tf.io.gfile.isdir(f"{folder.rstrip('/')}/{TOKENIZER}"))


def copy_tokenizer(folder: str, target: str) -> None:
    """Copy the tokenizer's files, without subfolders, from a dataset or model folder to `target`.

    Raises: ReaderError if the folder has no tokenizer, or a file is a link.
    """
    source = f"{folder.rstrip('/')}/{TOKENIZER}"
    if not has_tokenizer(folder):
        raise ReaderError(
            f"--model {folder}: there is no folder {TOKENIZER}/ in it",
            remedy="copy the folder tokenizer/ of the dataset into it",
        )
    tf.io.gfile.makedirs(target)
    for name in filter(local_paths.is_tokenizers, tf.io.gfile.listdir(source)):
        if not tf.io.gfile.isdir(f"{source}/{name}"):
            local_paths.require_regular(f"{source}/{name}")
            tf.io.gfile.copy(f"{source}/{name}", f"{target}/{name}", overwrite=True)
