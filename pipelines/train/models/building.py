"""Build the user's model, or a KerasHub backbone with a head, and check its sizes."""

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from pipelines.train.config import Pooling, TrainConfig
from pipelines.train.errors import said
from pipelines.train.models import backbones, heads
from pipelines.train.models.exportable import export_problem
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import DECODER_INPUTS, MASKED_POSITIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model and its KerasHub backbone (None for a user's model).

    pooling: how a row's states become one vector, for classify; otherwise None.
    has_bias: whether the output layer for mlm has a bias.
    reference: for dpo, frozen weights of the reference model, in the order of the trainable weights.
    notes: lines for the user about a checkpoint's tensors and settings.
    """

    model: keras.Model
    backbone: Any = None
    pooling: Pooling | None = None
    has_bias: bool = False
    reference: tuple[np.ndarray, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def description(self) -> dict[str, Any] | None:
        """JSON object for `build_again`; None for a user's model."""
        if self.backbone is None:
            return None
        config = keras.saving.serialize_keras_object(self.backbone)["config"]
        kind, activation = type(self.backbone).__name__, backbones.activation_of(self.backbone)
        return {"class": kind, "config": config, "has_bias": self.has_bias, "activation": activation}


def build(config: TrainConfig, manifest: Manifest, task: BoundTask) -> BuiltModel:
    """Build the model that --model names. With TensorFlow, call this inside the strategy's scope.

    Raises: ConfigError if the model does not exist, or does not fit the dataset or the task.
    """
    backbones.require_known(config.model)
    if backbones.is_users(config.model):
        if config.from_scratch:
            raise ConfigError(
                f"--from-scratch with --model {config.model}, expected a preset, since your function determines the "
                "weights of your model",
                remedy="leave --from-scratch out",
            )
        built = BuiltModel(model=users_model(config.model, manifest))
    else:
        built = _hub_model(config, manifest, task)
    _check_sizes(built.model, config=config, manifest=manifest)
    for length in manifest.bucket_lengths or (manifest.row_length,):
        _check_shape(built.model, config=config, manifest=manifest, task=task, length=length)
    return built


def reference_of(config: TrainConfig, manifest: Manifest, task: BoundTask, built: BuiltModel) -> tuple[np.ndarray, ...]:
    """Return the trainable weights of the model that --reference names, or without --reference, of `built`.

    Raises: ConfigError if the two models differ in their architecture.
    """
    reference = built
    if config.reference is not None:
        reference = build(dataclasses.replace(config, model=config.reference, from_scratch=False), manifest, task)
        ours, theirs = _architecture(built), _architecture(reference)
        if differing := [name for name in ours if ours[name] != theirs.get(name)]:
            raise ConfigError(
                f"--reference {config.reference} differs from --model {config.model} in {', '.join(differing[:3])}, "
                "expected the same architecture",
                remedy="give an earlier state of the same model",
            )
    return tuple(np.array(variable.value) for variable in reference.model.trainable_variables)


def _architecture(built: BuiltModel) -> dict[str, Any]:
    shapes = [tuple(variable.shape) for variable in built.model.trainable_variables]
    if (described := built.description) is None:
        return {"weights": shapes}
    config = {name: value for name, value in described["config"].items() if name not in ("name", "dtype", "dropout")}
    return {**config, "class": described["class"], "activation": described["activation"], "weights": shapes}


def build_again(
    backbone: Mapping[str, Any], manifest: Manifest, task: BoundTask, *, pooling: Pooling | None
) -> BuiltModel:
    """Rebuild a model, with random weights, from `backbone`, its `BuiltModel.description`. Raises: ConfigError."""
    name = str(backbone["class"])
    hub_class = getattr(backbones.keras_hub(name).models, name, None)
    if hub_class is None or not name.endswith("Backbone"):
        raise ConfigError(
            f"the model has a {name!r:.100}, which this version of KerasHub lacks",
            remedy="install the version of KerasHub that the model was trained with",
        )
    rebuilt = backbones.adapted(hub_class.from_config(backbone["config"]), activation=backbone.get("activation"))
    model = heads.with_head(rebuilt, manifest, task, pooling=pooling or "first", has_bias=bool(backbone["has_bias"]))
    return BuiltModel(model=model, backbone=rebuilt, pooling=pooling)


def _hub_model(config: TrainConfig, manifest: Manifest, task: BoundTask) -> BuiltModel:
    backbone, checkpoint = backbones.make(config, manifest)
    backbones.check(backbone, config=config, task=task)
    if manifest.schema.with_role("segment_ids") is not None:
        backbones.require_apart(backbone, config=config, manifest=manifest)
    pooling = config.pooling
    if pooling == "auto":
        scratch = config.model in backbones.FROM_SCRATCH
        pooling = "last" if backbones.kind_of(backbone) == "decoder" else "mean" if scratch else "first"
    has_bias = checkpoint is not None and task.kind.head == "masked" and checkpoint.has_mlm_head
    model = heads.with_head(backbone, manifest, task, pooling=pooling, has_bias=has_bias)
    notes: Sequence[str] = ()
    if checkpoint is not None:
        notes = checkpoint.load_head(model, task, manifest, pooling=pooling)
    elif os.path.isfile(os.path.join(config.model, "task.json")) and not config.from_scratch:
        notes = (f"warning: --model {config.model}: the head of KerasHub's task is not used",)
    kept = pooling if task.kind.head == "rows" else None
    side = manifest.tokenizer.padding_side
    if problem := export_problem(backbone, task=config.task, pooling=kept, padding_side=side):
        notes = (*notes, "the model cannot be exported to transformers: {}; to export it, {}".format(*problem))
    return BuiltModel(model=model, backbone=backbone, pooling=kept, has_bias=has_bias, notes=tuple(notes))


def users_model(spec: str, manifest: Manifest) -> keras.Model:
    """Build a model with the user's function. `spec`: its name, such as package.module:build. Raises: ConfigError."""
    module_name, _, function = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        build_model = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--model {spec}: {error}, expected a function {function!r} in an importable module {module_name!r}",
            remedy="run the command in the folder that contains the module, or set PYTHONPATH",
        ) from error
    try:
        model = build_model(manifest)
    except PrepError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--model {spec}: {function}(manifest) failed ({said(error)})",
            remedy="run the same command again with --verbose, which shows where the error occurred",
        ) from error
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"--model {spec}: {function}(manifest) returned a {type(model).__name__}, expected a keras.Model",
            remedy="return the model from the function",
        )
    return model


def _check_sizes(model: keras.Model, *, config: TrainConfig, manifest: Manifest) -> None:
    embeddings = [variable for variable in model.variables if variable.path.endswith("/embeddings")]
    rows_of = {variable.path.split("/")[-2]: variable.shape[0] for variable in embeddings}
    positions = {name: rows for name, rows in rows_of.items() if name.endswith("position_embedding")}
    tables = {name: rows for name, rows in rows_of.items() if name not in positions}
    vocab_size = manifest.tokenizer.vocab_size
    if tables and (rows := max(tables.values())) < vocab_size:
        layer = max(tables, key=lambda name: tables[name])
        raise ConfigError(
            f"--model {config.model}: the model's vocabulary has {rows:,} entries (layer {layer!r}), but the dataset's "
            f"tokenizer {manifest.tokenizer.name!r} has {vocab_size:,}",
            remedy="build the dataset with the model's tokenizer, or train one from scratch, such as --model bert-tiny",
        )
    target = manifest.schema.with_role("target_ids")
    for name, rows in positions.items():
        of_targets = target is not None and name.startswith("decoder")
        needed = target.num_values if target is not None and of_targets else manifest.row_length
        if rows < needed:
            raise ConfigError(
                f"--model {config.model}: the model has {rows:,} positions, but the dataset's "
                f"{'targets' if of_targets else 'rows'} have {needed:,} tokens",
                remedy=f"build the dataset with --{'target' if of_targets else 'max'}-length {rows}",
            )


def _check_shape(model: keras.Model, *, config: TrainConfig, manifest: Manifest, task: BoundTask, length: int) -> None:
    inputs = {name: (2, tensor.shape[1] or length) for name, tensor in heads.inputs_of(manifest, task).items()}
    if MASKED_POSITIONS in inputs:
        inputs[MASKED_POSITIONS] = (2, 1)
    shapes = heads.taken(model, inputs)
    rows: tuple[int, ...] = (2,) if task.kind.head == "rows" else inputs.get(DECODER_INPUTS, (2, length))
    rows = shapes.get(MASKED_POSITIONS, rows)
    shape = _output_shape(model, shapes, config=config, manifest=manifest)
    exact = not task.of_vocabulary
    if shape[:-1] != rows or (shape[-1] != task.num_outputs if exact else shape[-1] < task.num_outputs):
        place = "" if task.kind.head == "rows" else "T, " if DECODER_INPUTS in inputs else "L, "
        wanted = f"[B, {place}{task.num_outputs}]"
        got = str(["B", *shape[1:]]).replace("'", "")
        raise ConfigError(
            f"--model {config.model}: the output has shape {got}, expected logits {wanted} for --task {config.task}",
            remedy="change the width of the last layer: the number of classes for classify and tokens, 1 for numbers, "
            "2 for span, and the vocabulary size for other tasks",
        )


def _output_shape(
    model: keras.Model, shapes: Mapping[str, tuple[int, ...]], *, config: TrainConfig, manifest: Manifest
) -> tuple[int, ...]:
    with contextlib.suppress(Exception):  # a subclassed model may not support it
        return tuple(model.compute_output_shape(shapes))
    try:
        return tuple(model({name: ops.zeros(shape, "int32") for name, shape in shapes.items()}).shape)
    except Exception as error:
        if not manifest.bucket_lengths:
            raise
        raise ConfigError(
            f"--model {config.model}: the model does not take rows of all lengths {list(manifest.bucket_lengths)} "
            f"({said(error)})",
            remedy="give the model's inputs the shape (None,)",
        ) from error
