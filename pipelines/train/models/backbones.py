"""Check --model, and build KerasHub's backbones: from scratch, or with a preset's weights or architecture.

In packed rows, a token attends only to tokens of the same document (arXiv:2107.02027). KerasHub's backbones take only a
padding mask, but their layers take any mask and positions. So `keeping_apart` connects the layers again, under the same
names.
"""

import difflib
import importlib
import inspect
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from pipelines.train.config import TrainConfig
from pipelines.train.errors import said
from pipelines.train.models import checkpoint, fit
from pipelines.train.models.checkpoint import Checkpoint
from pipelines.train.models.families import FAMILIES, family_of
from pipelines.train.tasks import BoundTask, decoder_start
from pipelines.train.tasks.kinds import BackboneKind as Kind
from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.manifest import Manifest

# Layers, heads and width of BERT (arXiv:1810.04805, arXiv:1908.08962) and GPT-2 (xl).
_SIZES = {
    "tiny": (2, 2, 128),
    "mini": (4, 4, 256),
    "small": (4, 8, 512),
    "medium": (8, 8, 512),
    "base": (12, 12, 768),
    "large": (24, 16, 1024),
    "xl": (48, 25, 1600),
}
FROM_SCRATCH = {
    f"{name}-{size}": (family, size) for name, family in FAMILIES.items() if family.scratch for size in _SIZES
}
_USERS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)\Z")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*\Z")
_SEQ2SEQ_INPUTS = {"encoder_token_ids", "encoder_padding_mask", "decoder_token_ids", "decoder_padding_mask"}
# Each kind with a description and models to choose.
_KINDS: Mapping[Kind, tuple[str, str]] = {
    "any": ("", "an encoder or a decoder, or --task seq2seq"),
    "encoder": ("an encoder, which sees later tokens", "bert-tiny, or another encoder"),
    "decoder": ("a decoder, which cannot see later tokens", "gpt2-tiny, or another decoder"),
    "encoder-decoder": ("an encoder and a decoder", "t5-tiny, bart-tiny, or a preset of T5 or BART"),
}


def is_users(name: str) -> bool:
    """Return whether `name` has the form of a user's function, such as package.module:build."""
    return bool(_USERS.match(name))


def require_known(name: str) -> None:
    """Check that --model names a model. Raises: ConfigError, which suggests similar names."""
    if os.path.isfile(os.path.join(name, "model.json")):
        raise ConfigError(
            f"--model {name}: this is the folder of a finished training run, expected a model to start from",
            remedy=f"to continue that training run, give --model-dir {name} and its original --model; to use the "
            "trained model, run `train-tpu predict` or `train-tpu export`",
        )
    if name in FROM_SCRATCH or is_users(name) or "://" in name or os.path.isdir(name):
        return
    presets = keras_hub(name).models.Backbone.presets
    if name in presets:
        return
    if module := _MODULE.match(name):
        meant = [f"{module[1]}:build" if module[2] == "py" else f"{module[1]}:{module[2]}"]
    elif _HUB_ID.match(name):
        meant = [f"hf://{name}"]
    else:
        meant = difflib.get_close_matches(name.lower(), [*FROM_SCRATCH, *presets], n=2)
    families = ", ".join(f"{kind}-SIZE" for kind, family in FAMILIES.items() if family.scratch)
    raise ConfigError(
        f"--model {name!r}: there is no such model, expected {families} (SIZE: {', '.join(_SIZES)}), "
        "package.module:build, a KerasHub preset, hf://OWNER/NAME, or a folder with a preset or checkpoint",
        remedy=f"did you mean --model {' or '.join(meant)}?" if meant else "check the name or the path",
    )


def keras_hub(name: str) -> Any:
    """Import and return keras_hub. `name`: the model that needs it. Raises: ConfigError."""
    try:
        return importlib.import_module("keras_hub")
    except ImportError as error:
        raise ConfigError(
            f"--model {name} needs KerasHub, which cannot be imported ({error})",
            remedy="run `pip install '.[train]'`, or give your own model: --model package.module:build",
        ) from error


def make(config: TrainConfig, manifest: Manifest) -> tuple[Any, Checkpoint | None]:
    """Return the backbone for --model, and its checkpoint of transformers or None. Raises: ConfigError."""
    # Keras mistakes the mask argument of T5's attention for a mask of its inputs.
    warnings.filterwarnings("ignore", message=r"Layer '\w+' \(of type T5MultiHeadAttention\) was passed an input")
    is_new = config.model in FROM_SCRATCH
    backbone, opened = (_from_scratch(config, manifest), None) if is_new else _preset(config, manifest)
    if (is_new or config.from_scratch) and family_of(backbone).unit_embedding:
        # As in T5's code. With KerasHub's mean 1 and deviation 0.05, a small run needs over three times as many steps.
        table = backbone.token_embedding.embeddings
        table.assign(keras.initializers.TruncatedNormal(mean=0.0, stddev=1.0)(table.shape, dtype=table.dtype))
    return backbone, None if config.from_scratch else opened


def kind_of(backbone: Any) -> Kind:
    """Return "encoder" for a backbone like BERT, "decoder" like GPT-2, or "encoder-decoder" like T5."""
    if isinstance(backbone.input, dict) and "decoder_token_ids" in backbone.input:
        return "encoder-decoder"
    return "decoder" if any("Decoder" in type(layer).__name__ for layer in backbone.layers) else "encoder"


def scales_tied_logits(backbone: Any) -> bool:
    """Return whether states are divided by sqrt(width) before the output layer, as in a T5 with a tied embedding."""
    return family_of(backbone).unit_embedding and bool(backbone.tie_embedding_weights)


def check(backbone: Any, *, config: TrainConfig, task: BoundTask) -> None:
    """Check that a backbone has a text model's inputs, and fits the task. Raises: ConfigError."""
    feeds = set(backbone.input) if isinstance(backbone.input, dict) else set()
    if not ({"token_ids", "padding_mask"} <= feeds <= {"token_ids", "padding_mask", "segment_ids"}) and (
        feeds != _SEQ2SEQ_INPUTS
    ):
        raise ConfigError(
            f"--model {config.model}: the model's inputs are {sorted(feeds)}, expected the inputs of a text encoder or "
            "decoder: token_ids, padding_mask and, optionally, segment_ids",
            remedy="choose a text encoder or decoder, or give your own model: --model package.module:build",
        )
    needed, kind, start = task.kind.backbone, kind_of(backbone), family_of(backbone).decoder_start
    if kind == needed == "encoder-decoder" and config.decoder_start == "auto" and decoder_start(config) != start:
        raise ConfigError(
            f"--decoder-start auto with --model {config.model}: a model of this name would start with "
            f"{decoder_start(config)}, but a {family_of(backbone).backbone} starts with {start}",
            remedy=f"give --decoder-start {start}",
        )
    if kind not in (("encoder", "decoder") if needed == "any" else (needed,)):
        raise ConfigError(
            f"--task {config.task} with --model {config.model}: the model is {_KINDS[kind][0]}",
            remedy=f"choose {_KINDS[needed][1]}",
        )


def _from_scratch(config: TrainConfig, manifest: Manifest) -> Any:
    family, size = FROM_SCRATCH[config.model]
    layers, heads, width = _SIZES[size]
    target = manifest.schema.with_role("target_ids")
    sizes = {"num_layers": layers, "num_heads": heads, "hidden_dim": width, "intermediate_dim": 4 * width}
    sizes["max_sequence_length"] = max(manifest.row_length, 0 if target is None else target.num_values)
    keywords = {word: sizes.get(value, value) for word, value in (family.scratch or {}).items()}
    keywords |= {"vocabulary_size": manifest.tokenizer.vocab_size, "dropout": config.dropout}
    return adapted(getattr(keras_hub(config.model).models, family.backbone)(**keywords))


def _preset(config: TrainConfig, manifest: Manifest) -> tuple[Any, Checkpoint | None]:
    hub, opened = keras_hub(config.model), None
    changes: dict[str, Any] = {}
    if config.from_scratch:
        changes = {"load_weights": False, "vocabulary_size": manifest.tokenizer.vocab_size}
    try:
        if os.path.isdir(config.model):
            fit.require_sound(config.model, model=config.model)
        opened = checkpoint.opened(config.model, weights=not config.from_scratch)
        if opened is None:
            return adapted(hub.models.Backbone.from_preset(config.model, **changes)), None
        with opened.whole() as folder:
            backbone = hub.models.Backbone.from_preset(folder, **{**opened.settings.keywords, **changes})
        return adapted(opened.complete(backbone), activation=opened.settings.activation), opened
    except PrepError:
        raise
    except Exception as error:  # from the download, a file or the conversion
        raise ConfigError(
            f"--model {config.model}: the model cannot be loaded ({said(error)})",
            remedy="check the name, the network, and that KerasHub supports this kind of checkpoint"
            if opened is None
            else "save the checkpoint with all weights, by save_pretrained of its class in transformers",
        ) from error


def activation_of(backbone: Any) -> str | None:
    """Return the activation of a backbone's layers, such as gelu_new; None if KerasHub fixes it for the family."""
    layer = next((layer for layer in backbone.layers if hasattr(layer, "_feedforward_intermediate_dense")), None)
    name = getattr(getattr(layer, "activation", None), "__name__", None)
    return "gelu_new" if name == "gelu_approximate" else name


def adapted(backbone: Any, *, activation: str | None = None) -> Any:
    """Change a backbone's layers so that Keras can save them, and return the backbone.

    `activation`: the layers' new activation, which KerasHub's constructors do not take; None keeps the present one.
    """
    for layer in backbone.layers:
        _repair_config(layer)
    if activation is not None and activation != activation_of(backbone):
        tanh_form = keras.saving.get_registered_object("keras_hub>gelu_approximate")
        function = tanh_form if activation == "gelu_new" else keras.activations.get(activation)
        for layer in backbone.layers:
            if (dense := getattr(layer, "_feedforward_intermediate_dense", None)) is not None:
                layer.activation = dense.activation = function
    return backbone


def connected(backbone: Any) -> Any:
    """Return the backbone, or a plain Keras model of its layers if its config would lose the layers' activation."""
    if activation_of(backbone) in (None, family_of(backbone).activation):
        return backbone
    return keras.Model(backbone.input, backbone.output, name=backbone.name)


def _repair_config(layer: Any) -> None:
    # In KerasHub 0.32, Llama's layer reads a missing attribute and omits factors; Qwen3's layer omits head_dim.
    if "TransformerDecoder" not in type(layer).__name__:
        return
    names = [name for name in inspect.signature(type(layer)).parameters if hasattr(layer, name)]
    if not hasattr(layer, "rope_scaling_factor"):
        layer.rope_scaling_factor = None
    written = layer.get_config

    def whole_config() -> dict[str, Any]:
        config = written()
        if config.get("rope_scaling_factor", 0) is None:
            del config["rope_scaling_factor"]
        return {**{name: getattr(layer, name) for name in names if name not in config}, **config}

    layer.get_config = whole_config


def require_apart(backbone: Any, *, config: TrainConfig, manifest: Manifest) -> None:
    """Check that `keeping_apart` supports the backbone, for rows with several documents. Raises: ConfigError."""
    if not family_of(backbone).keeps_apart:
        raise ConfigError(
            f"dataset {manifest.name!r} has several documents in a row, but --model {config.model} cannot keep them "
            "apart, expected BERT, GPT-2, or a model with the inputs segment_ids and positions",
            remedy="choose bert-SIZE, gpt2-SIZE or a preset of BERT or GPT-2, give your own model (the function "
            "tfrecord_io.objectives.segment_attention_mask makes its mask), or build the data with --layout concat or "
            "pad",
        )


def keeping_apart(backbone: Any) -> keras.Model:
    """Return a model with the backbone's layers, where tokens attend only to tokens of the same document.

    Inputs, int32 [B, L]: `token_ids`; `documents` (from 1; 0 on padding); `positions`. Output: states [B, L, D].
    """
    names = ("token_ids", "documents", "positions")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    documents = inputs["documents"]
    # Padding attends to padding, since a softmax needs at least one term.
    mask_BLL = ops.equal(ops.expand_dims(documents, axis=2), ops.expand_dims(documents, axis=1))
    tokens = backbone.token_embedding(inputs["token_ids"])
    places = backbone.position_embedding(tokens, positions=inputs["positions"])
    if hasattr(backbone, "segment_embedding"):  # BERT
        types = backbone.segment_embedding(ops.zeros_like(inputs["token_ids"]))
        states = backbone.embeddings_layer_norm(backbone.embeddings_add((tokens, places, types)))
        mask, last = "attention_mask", None
    else:
        states = backbone.embeddings_add((tokens, places))
        mask, last = "decoder_attention_mask", backbone.layer_norm
    states = backbone.embeddings_dropout(states)
    for layer in backbone.transformer_layers:
        states = layer(states, **{mask: mask_BLL})
    return keras.Model(inputs, states if last is None else last(states), name=backbone.name)
