"""The model for a task on a dataset: from the manifest's names and sizes in, logits out.

    inputs by the dataset's own feature names          backbone (KerasHub)                 head
    input_ids        int32 [B, L]  ─► token_ids    ─┐
    attention_mask   int32 [B, L]  ─► padding_mask ─┼─► sequence [B, L, D] ─┬─ pool ─► dense ─► logits [B, classes]
    token_type_ids   int32 [B, L]  ─► segment_ids  ─┘  (where it takes any) └─ tied embedding ─► logits [B, L, V]
                       for tokens: the sequence itself goes to the dense layer, and the logits are [B, L, classes]
    masked_positions int32 [B, P]  ─► for mlm: the embedding gets only these, and the logits are [B, P, V]

`--model` is one of three things (`model_names`):
    bert-tiny, gpt2-tiny …      from scratch, with the manifest's vocabulary and length
    package.module:build        the user's: build(manifest) gives a Keras model from a dict of such inputs to logits
    anything else               a KerasHub preset, hf://OWNER/NAME, or a folder: pretrained weights
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from pipelines.train import model_names
from pipelines.train.config import Pooling, TrainConfig
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import MASKED_POSITIONS
from tfrecord_io.schema import Role

__all__ = ["Built", "build", "build_again", "taken", "users_model"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A model, and the KerasHub backbone in it; None in the user's. `pooling`: of classify, how rows are pooled."""

    model: keras.Model
    backbone: Any = None
    pooling: Pooling | None = None

    @property
    def description(self) -> dict[str, Any] | None:
        """The backbone as JSON, from which `build_again` makes one like it."""
        if self.backbone is None:
            return None
        config = keras.saving.serialize_keras_object(self.backbone)["config"]
        return {"class": type(self.backbone).__name__, "config": config}


def build(config: TrainConfig, manifest: Manifest, task: BoundTask) -> Built:
    """The model; call it inside the strategy's scope.

    Raises: ConfigError if there is no such model, or it does not fit the dataset or the task.
    """
    model_names.require_known(config.model)
    if model_names.is_users(config.model):
        built = Built(model=users_model(config.model, manifest))
    else:
        _refuse_packed(config, manifest)
        scratch = model_names.from_scratch(config.model)
        backbone = _from_scratch(config, manifest, *scratch) if scratch else _pretrained(config.model)
        _check_backbone(backbone, config=config)
        pooling = _pooling(config, backbone)
        model = _with_head(backbone, manifest, task, pooling=pooling)
        built = Built(model=model, backbone=backbone, pooling=pooling if config.task == "classify" else None)
    _check_sizes(built.model, config=config, manifest=manifest)
    _check_logits(built.model, config=config, manifest=manifest, task=task)
    return built


def taken(model: keras.Model, features: Mapping[str, Any]) -> dict[str, Any]:
    """Select the features that the model takes. With `masked_positions` its logits are [B, P, V], else [B, L, V]."""
    try:
        names = model.input
    except (AttributeError, ValueError):  # a subclassed model, which takes any
        names = None
    if not isinstance(names, Mapping):
        names = features.keys() - {MASKED_POSITIONS}
    return {name: each for name, each in features.items() if name in names}


def _refuse_packed(config: TrainConfig, manifest: Manifest) -> None:
    """A backbone takes no mask of which tokens see which: documents that share a row would see each other."""
    if manifest.schema.with_role("segment_ids") is not None:
        raise ConfigError(
            f"dataset {manifest.name!r} has several documents in a row, and --model {config.model} has no way to keep "
            "them apart, expected one document in a row, or a model that takes segment_ids and positions",
            remedy="give your own --model package.module:build (tfrecord_io.objectives.segment_attention_mask makes "
            "its mask), or build the data with --layout concat or pad",
        )


def _from_scratch(config: TrainConfig, manifest: Manifest, family: str, size: str) -> Any:
    layers, heads, width = model_names.SIZES[size]
    hub = model_names.keras_hub(config.model).models
    sizes = {
        "vocabulary_size": manifest.tokenizer.vocab_size,
        "num_layers": layers,
        "num_heads": heads,
        "hidden_dim": width,
        "intermediate_dim": 4 * width,
        "dropout": config.dropout,
        "max_sequence_length": manifest.row_length,
    }
    return hub.BertBackbone(**sizes) if family == "bert" else hub.GPT2Backbone(**sizes)


def _pretrained(name: str) -> Any:
    hub = model_names.keras_hub(name)
    try:
        return hub.models.Backbone.from_preset(name)
    except Exception as error:  # of the hub's client, of a file, of the conversion: all mean the same to the user
        short = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"--model {name}: it cannot be loaded ({short}), expected a checkpoint that KerasHub knows",
            remedy="check the name, the network, and that the checkpoint is of a kind that KerasHub knows",
        ) from error


def users_model(spec: str, manifest: Manifest) -> keras.Model:
    """What the user's function makes. Raises: ConfigError if it cannot be imported, fails or gives no model."""
    module_name, _, function = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script does not
    try:
        build_model = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--model {spec}: {error}, expected a function {function!r} in a module {module_name!r} that can be "
            "imported from here",
            remedy="run from the folder that holds the module, or set PYTHONPATH",
        ) from error
    try:
        model = build_model(manifest)
    except PrepError:
        raise
    except Exception as error:
        short = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"--model {spec}: {function}(manifest) failed ({short})", remedy="--verbose shows where"
        ) from error
    if not isinstance(model, keras.Model):
        raise ConfigError(f"--model {spec}: {function}(manifest) gave {type(model).__name__}, expected a keras.Model")
    return model


def inputs_of(manifest: Manifest) -> dict[str, Any]:
    """A Keras input for each feature that a model gets, int32 [B, L], by the dataset's own names."""
    schema = manifest.schema
    others: tuple[Role, ...] = ("token_type_ids", "segment_ids", "positions")
    found = (feature.name for role in others if (feature := schema.with_role(role)) is not None)
    names = [_ids_name(manifest), _mask_name(manifest), *found]
    return {name: keras.Input((manifest.row_length,), dtype="int32", name=name) for name in names}


def _ids_name(manifest: Manifest) -> str:
    ids = manifest.schema.with_role("token_ids")
    assert ids is not None, "the objective was bound, which needs it"
    return ids.name


def _mask_name(manifest: Manifest) -> str:
    mask = input_plan.mask_name(manifest.schema)
    assert mask is not None, "as above"
    return mask


def _with_head(backbone: Any, manifest: Manifest, task: BoundTask, *, pooling: Pooling) -> keras.Model:
    inputs = inputs_of(manifest)
    ids, mask = inputs[_ids_name(manifest)], inputs[_mask_name(manifest)]
    types = manifest.schema.with_role("token_type_ids")
    feeds = {"token_ids": ids, "padding_mask": mask}
    if "segment_ids" in backbone.input:
        feeds["segment_ids"] = ops.zeros_like(ids) if types is None else inputs[types.name]
    if task.name in ("mlm", "clm"):
        if task.name == "mlm":
            # Of every row the same number of positions, but not of every batch: an evaluation may use another share.
            inputs[MASKED_POSITIONS] = keras.Input((None,), dtype="int32", name=MASKED_POSITIONS)
            feeds[MASKED_POSITIONS] = inputs[MASKED_POSITIONS]
        logits = _language_model(backbone, task)(feeds)
    else:
        found = backbone(feeds)
        sequence_BLD = found["sequence_output"] if isinstance(found, dict) else found
        if task.per_token:
            states = sequence_BLD
        elif pooling == "first" and _has_pooler(found, manifest):
            states = found["pooled_output"]
        else:
            states = _pool(sequence_BLD, mask, pooling=pooling)
        states = keras.layers.Dropout(getattr(backbone, "dropout", 0.0), name="head_dropout")(states)
        logits = keras.layers.Dense(task.num_outputs, dtype="float32", name="logits")(states)
    return keras.Model(inputs, logits, name=f"{backbone.name}_{task.name}")


def _language_model(backbone: Any, task: BoundTask) -> keras.Model:
    """The backbone and the logits of its own embedding, as one flat model.

    A Keras file keeps a layer that is used twice in a model, but not one that a model shares with a model inside it:
    that would be loaded as two layers, one of them without weights, which fails.
    """
    inputs, found = dict(backbone.input), backbone.output
    sequence_BLD = found["sequence_output"] if isinstance(found, dict) else found
    if task.name == "mlm":
        inputs[MASKED_POSITIONS] = keras.Input((None,), dtype="int32", name=MASKED_POSITIONS)
        sequence_BLD = ops.take_along_axis(sequence_BLD, inputs[MASKED_POSITIONS][..., None], axis=1)
        sequence_BLD = keras.layers.Dense(sequence_BLD.shape[-1], name="head_dense")(sequence_BLD)
        # As in KerasHub's backbones, and BERT's own code: an exported model has one activation for all.
        sequence_BLD = ops.gelu(sequence_BLD, approximate=True)
        sequence_BLD = keras.layers.LayerNormalization(epsilon=1e-12, name="head_norm")(sequence_BLD)
    logits = backbone.token_embedding(sequence_BLD, reverse=True)
    model = keras.Model(inputs, logits, name=f"{backbone.name}_logits")
    # Its layers have types of their own. In a model of bfloat16, Keras would leave the embedding, which is of integers,
    # in float32, and compute the logits so.
    model.dtype_policy = "float32"
    return model


def _has_pooler(found: Any, manifest: Manifest) -> bool:
    """Whether a backbone pools by itself: the first token, through the dense layer that its checkpoint was trained
    with (BERT, arXiv:1810.04805, section 3.1). That is the token at place 0: padding, in rows padded on the left.
    """
    return isinstance(found, dict) and "pooled_output" in found and manifest.tokenizer.padding_side == "right"


def _pool(sequence_BLD: Any, mask_BL: Any, *, pooling: Pooling) -> Any:
    """One vector a row: of the first token, of the last, or the mean of all. Works for padding on either side."""
    count_BL = ops.cumsum(mask_BL, axis=1)
    if pooling == "first":
        chosen_BL = ops.cast(ops.equal(count_BL, 1), "int32") * mask_BL
    elif pooling == "last":
        chosen_BL = ops.cast(ops.equal(count_BL, ops.sum(mask_BL, axis=1, keepdims=True)), "int32") * mask_BL
    else:
        chosen_BL = mask_BL
    share_BL = ops.cast(chosen_BL, sequence_BLD.dtype)
    # A row without any token would divide by 0; it has only padding, and its mean is 0.
    share_BL = share_BL / ops.maximum(ops.sum(share_BL, axis=1, keepdims=True), 1)
    return ops.einsum("bld,bl->bd", sequence_BLD, share_BL)


def build_again(backbone: Mapping[str, Any], manifest: Manifest, task: BoundTask, *, pooling: Pooling | None) -> Built:
    """The model that `build` made of a backbone (`Built.description`), with other weights.

    Raises: ConfigError if KerasHub has no such backbone.
    """
    family = getattr(model_names.keras_hub(str(backbone["class"])).models, str(backbone["class"]), None)
    if family is None or not str(backbone["class"]).endswith("Backbone"):
        raise ConfigError(
            f"a model of a {backbone['class']!r:.100}, which this version of KerasHub does not have",
            remedy="use the version that the model was trained with",
        )
    made = family.from_config(backbone["config"])
    return Built(model=_with_head(made, manifest, task, pooling=pooling or "first"), backbone=made, pooling=pooling)


def _feeds(layer: Any) -> set[str]:
    return set(layer.input) if isinstance(layer, keras.Model) and isinstance(layer.input, dict) else set()


def _pooling(config: TrainConfig, backbone: Any) -> Pooling:
    if config.pooling != "auto":
        return config.pooling
    return "last" if _is_causal(backbone) else "mean" if model_names.from_scratch(config.model) else "first"


def _is_causal(backbone: Any) -> bool:
    return any("Decoder" in type(layer).__name__ for layer in backbone.layers)


def _check_backbone(backbone: Any, *, config: TrainConfig) -> None:
    feeds = _feeds(backbone)
    if not {"token_ids", "padding_mask"} <= feeds <= {"token_ids", "padding_mask", "segment_ids"}:
        raise ConfigError(
            f"--model {config.model}: it takes {sorted(feeds)}, expected token_ids, padding_mask, at most segment_ids",
            remedy="choose a text encoder or decoder, or build it yourself: --model package.module:build",
        )
    if config.task in ("mlm", "clm") and (config.task == "clm") != _is_causal(backbone):
        causal = _is_causal(backbone)
        kind = "a decoder, which does not see what follows" if causal else "an encoder, which sees what follows"
        raise ConfigError(
            f"--task {config.task} with --model {config.model}: it is {kind}",
            remedy=f"choose --task {'clm' if causal else 'mlm'}, or another model",
        )


@dataclasses.dataclass(frozen=True)
class _Table:
    """An embedding: which layer, and for how many ids."""

    layer: str
    rows: int


def _check_sizes(model: keras.Model, *, config: TrainConfig, manifest: Manifest) -> None:
    """Refuses a model whose largest embedding has no row for some id, or whose positions end before the rows do."""
    layers = list(model._flatten_layers())
    tables = [
        _Table(layer.name, layer.input_dim) for layer in layers if isinstance(getattr(layer, "input_dim", None), int)
    ]
    vocab_size = manifest.tokenizer.vocab_size
    if tables and (largest := max(tables, key=lambda table: table.rows)).rows < vocab_size:
        raise ConfigError(
            f"--model {config.model}: its vocabulary ends at {largest.rows} (layer {largest.layer!r}), but the dataset "
            f"was made with tokenizer {manifest.tokenizer.name!r} of {vocab_size} entries",
            remedy="build the dataset with the model's own tokenizer, or train a model from scratch: --model bert-tiny",
        )
    for layer in layers:
        positions = getattr(layer, "sequence_length", None)
        if type(layer).__name__ == "PositionEmbedding" and positions and positions < manifest.row_length:
            raise ConfigError(
                f"--model {config.model}: it has {positions} positions, but rows of this dataset have "
                f"{manifest.row_length} tokens",
                remedy=f"build the dataset with --max-length {positions}",
            )


def _check_logits(model: keras.Model, *, config: TrainConfig, manifest: Manifest, task: BoundTask) -> None:
    given = {name: (2, *each.shape[1:]) for name, each in inputs_of(manifest).items()}
    shapes = taken(model, {**given, **({MASKED_POSITIONS: (2, 1)} if task.name == "mlm" else {})})
    rows: tuple[int, ...] = (2, manifest.row_length) if task.per_token else (2,)
    rows = shapes.get(MASKED_POSITIONS, rows)
    try:
        shape = tuple(model.compute_output_shape(shapes))
    except Exception:  # a subclassed model may not say; it will when it is called
        shape = tuple(model({name: ops.zeros(each, "int32") for name, each in shapes.items()}).shape)
    exact = task.name in ("classify", "tokens")
    if shape[:-1] != rows or (shape[-1] != task.num_outputs if exact else shape[-1] < task.num_outputs):
        wanted = f"[B, {'L, ' if task.per_token else ''}{task.num_outputs}]"
        got = str(["B", *shape[1:]]).replace("'", "")
        raise ConfigError(
            f"--model {config.model}: its output has shape {got}, expected logits {wanted} for --task {config.task}",
            remedy="make its last layer so wide: class count for classify and tokens, 1 for numbers, vocabulary else",
        )
