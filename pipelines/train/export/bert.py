"""Convert BERT with this trainer's heads to the weight names of `transformers` (modeling_bert.py).

KerasHub's BERT has a layer norm epsilon of 1e-12 and usually the tanh form of GELU (`gelu_new`). Only transformers'
class for rows has a pooler, and no class pools rows by their mean.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors.numpy import save_file

from pipelines.train.model_files import TrainedModel
from pipelines.train.models import BuiltModel, backbones
from pipelines.train.tasks import TASKS

# Names of weights in transformers, by KerasHub's names. A dense kernel is [in, out] in Keras, with attention heads as a
# separate dimension, and [out, in] in transformers.
_EMBEDDINGS = {
    "token_embedding/embeddings": "word_embeddings.weight",
    "position_embedding/embeddings": "position_embeddings.weight",
    "segment_embedding/embeddings": "token_type_embeddings.weight",
    "embeddings_layer_norm/gamma": "LayerNorm.weight",
    "embeddings_layer_norm/beta": "LayerNorm.bias",
}
_BLOCK = {
    "self_attention_layer/query": "attention.self.query",
    "self_attention_layer/key": "attention.self.key",
    "self_attention_layer/value": "attention.self.value",
    "self_attention_layer/attention_output": "attention.output.dense",
    "self_attention_layer_norm": "attention.output.LayerNorm",
    "feedforward_intermediate_dense": "intermediate.dense",
    "feedforward_output_dense": "output.dense",
    "feedforward_layer_norm": "output.LayerNorm",
}
# Dense layers with kernels [in, heads, width of a head].
_SPLIT = ("/query", "/key", "/value")
_PARTS = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}


def write(built: BuiltModel, trained: TrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors of a BERT to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_of(built.backbone, trained), indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    save_file(weights_of(built, trained), str(folder / "model.safetensors"), metadata={"format": "pt"})


def config_of(backbone: Any, trained: TrainedModel) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [f"BertFor{TASKS[trained.task].auto_class}"],
        "model_type": "bert",
        "vocab_size": backbone.vocabulary_size,
        "hidden_size": backbone.hidden_dim,
        "num_hidden_layers": backbone.num_layers,
        "num_attention_heads": backbone.num_heads,
        "intermediate_size": backbone.intermediate_dim,
        "hidden_act": backbones.activation_of(backbone),
        "hidden_dropout_prob": backbone.dropout,
        "attention_probs_dropout_prob": backbone.dropout,
        "max_position_embeddings": backbone.max_sequence_length,
        "type_vocab_size": backbone.num_segments,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": trained.manifest.tokenizer.pad_id,
        "torch_dtype": "float32",
    }
    if TASKS[trained.task].labels:
        names = ("LABEL_0",) if trained.regression else trained.label_names
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    if TASKS[trained.task].head == "rows":
        several = "multi" if trained.manifest.multi_hot_size else "single"
        config["problem_type"] = "regression" if trained.regression else f"{several}_label_classification"
    return config


def weights_of(built: BuiltModel, trained: TrainedModel) -> dict[str, np.ndarray]:
    model, backbone = built.model, built.backbone
    width, values = backbone.hidden_dim, {}
    for layer in backbone.layers:
        for variable in layer.variables:  # without the prefix of enclosing models
            values[f"{layer.name}/{variable.path.partition(f'{layer.name}/')[2]}"] = _float32(variable)
    weights = {f"bert.embeddings.{theirs}": values[ours] for ours, theirs in _EMBEDDINGS.items()}
    for number in range(backbone.num_layers):
        for ours, theirs in _BLOCK.items():
            block, prefix = f"transformer_layer_{number}/{ours}", f"bert.encoder.layer.{number}.{theirs}"
            weights |= _layer(values, block, prefix, rows=width if ours.endswith(_SPLIT) else None)
    if TASKS[trained.task].head == "rows":
        weights |= _layer(values, "pooled_dense", "bert.pooler.dense")
    # The head of mlm is nested in the model.
    layers = [inner for layer in model.layers for inner in getattr(layer, "layers", [layer])]
    head = {f"{layer.name}/{variable.name}": _float32(variable) for layer in layers for variable in layer.variables}
    if TASKS[trained.task].head == "masked":
        weights |= _layer(head, "head_dense", "cls.predictions.transform.dense")
        weights |= _layer(head, "head_norm", "cls.predictions.transform.LayerNorm")
        weights["cls.predictions.bias"] = head.get("head_bias/bias", np.zeros(backbone.vocabulary_size, np.float32))
    else:
        weights |= _layer(head, "logits", TASKS[trained.task].hub_head)
    return {name: np.ascontiguousarray(value) for name, value in weights.items()}


def _float32(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable)).astype(np.float32)


def _layer(
    values: Mapping[str, np.ndarray], ours: str, theirs: str, *, rows: int | None = None
) -> dict[str, np.ndarray]:
    weights = {}
    for part, name in _PARTS.items():
        if (value := values.get(f"{ours}/{part}")) is None:
            continue
        if part == "kernel":  # with `rows`, the heads are a dimension of the output, else of the input
            value = value.reshape(rows, -1) if rows is not None else value.reshape(-1, value.shape[-1])
            value = value.T
        weights[f"{theirs}.{name}"] = value.reshape(-1) if part == "bias" else value
    return weights
