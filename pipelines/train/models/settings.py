"""Check the settings in config.json of a checkpoint of `transformers`.

KerasHub's converters ignore some settings, so a checkpoint with scaled positions would load as a different model.
`TYPES` has every setting that affects a model type's logits (configuration_*.py of transformers 5.24). An active
setting that is in neither `TYPES` nor `_WITHOUT_EFFECT` is an error.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfrecord_io.errors import ConfigError

# Allowed values, or a function that returns them for a config.
_Allowed = tuple[Any, ...] | Callable[[Mapping[str, Any]], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelType:
    """Settings of a model type in transformers.

    read: settings that KerasHub's converter reads, with the default of transformers; `...` if config.json always has
        them.
    passed: the keyword of KerasHub's backbone for a setting, and the default, None for KerasHub's default.
    required: the default of transformers, and the values that KerasHub's layers support.
    activation: the setting that names one of `ACTIVATIONS`.
    dropouts: settings of dropout; the first is used everywhere.
    rope: whether positions are rotary.
    linear: keyword for the factor that positions are divided by. KerasHub's Llama ignores it.
    llama3: whether frequencies can be scaled as in Llama 3.1.
    """

    read: Mapping[str, Any]
    passed: Mapping[str, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    required: Mapping[str, tuple[Any, _Allowed]] = dataclasses.field(default_factory=dict)
    activation: str | None = None
    dropouts: tuple[str, ...]
    rope: bool = False
    linear: str | None = None
    llama3: bool = False


def _at(name: str, *, divided_by: str | None = None) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that allows None and another setting's value, optionally divided by a second setting's."""
    return lambda config: (None, config.get(name) if divided_by is None else config[name] // config[divided_by])


# One name for each activation, by its names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}
_OF_DECODERS = {"use_bidirectional_attention": (None, (None, False)), "attention_bias": (False, (False,))}
_SIZES = dict.fromkeys(
    ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"), ...
)
_ENCODER = {
    "position_embedding_type": ("absolute", ("absolute",)),
    "is_decoder": (False, (False,)),
    "add_cross_attention": (False, (False,)),
}
_BERT = ModelType(
    read={**_SIZES, "max_position_embeddings": 512, "hidden_dropout_prob": 0.1},
    passed={"type_vocab_size": ("num_segments", 2)},
    required={**_ENCODER, "layer_norm_eps": (1e-12, (1e-12,))},
    activation="hidden_act",
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
_ROBERTA = dataclasses.replace(
    _BERT,
    passed={},
    required={
        **_ENCODER,
        "layer_norm_eps": (1e-12, (1e-5,)),
        "hidden_act": ("gelu", ("gelu",)),
        "pad_token_id": (1, (1,)),  # positions begin after this id
        "type_vocab_size": (2, (1,)),
    },
    activation=None,
)
_LLAMA = ModelType(
    read={**_SIZES, "num_key_value_heads": None, "tie_word_embeddings": False},
    passed={"rms_norm_eps": ("layer_norm_epsilon", 1e-6)},
    required={
        **_OF_DECODERS,
        "mlp_bias": (False, (False,)),
        "hidden_act": ("silu", ("silu", "swish")),
        "head_dim": (None, _at("hidden_size", divided_by="num_attention_heads")),
    },
    dropouts=("attention_dropout",),
    rope=True,
    llama3=True,
)
_MISTRAL = dataclasses.replace(
    _LLAMA,
    read={**_SIZES, "num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096, "rms_norm_eps": 1e-6},
    passed={},
    required={
        **{name: _LLAMA.required[name] for name in (*_OF_DECODERS, "mlp_bias", "hidden_act")},
        "tie_word_embeddings": (False, (False,)),
        "layer_types": (None, (None,)),
    },
    linear="rope_scaling_factor",
    llama3=False,
)


def _all_full(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return (None, ["full_attention"] * int(config["num_hidden_layers"]))


def _alternating(config: Mapping[str, Any]) -> tuple[Any, ...]:
    kinds = ("sliding_attention", "full_attention")
    return (None, [kinds[number % 2] for number in range(config["num_hidden_layers"])])


_QWEN2 = dataclasses.replace(
    _MISTRAL,
    read={
        **_SIZES,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
    required={
        "hidden_act": _LLAMA.required["hidden_act"],
        "head_dim": _LLAMA.required["head_dim"],
        "use_bidirectional_attention": (None, (None, False)),
        "use_sliding_window": (False, (False,)),
        "layer_types": (None, _all_full),
    },
)
_GEMMA = ModelType(
    read={**_SIZES, "num_key_value_heads": 16, "head_dim": 256},
    # "gelu" in old files means the tanh form, also in transformers.
    required={
        **_OF_DECODERS,
        "hidden_act": ("gelu_pytorch_tanh", ("gelu_pytorch_tanh", "gelu")),
        "hidden_activation": (None, (None, "gelu_pytorch_tanh")),
        "rms_norm_eps": (1e-6, (1e-6,)),  # fixed in KerasHub's layers
        "rope_theta": (10000.0, (10000.0,)),
    },
    dropouts=("attention_dropout",),
    rope=True,
)
TYPES: Mapping[str, ModelType] = {
    "bert": _BERT,
    "albert": dataclasses.replace(
        _BERT,
        read={
            **_BERT.read,
            "embedding_size": 128,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            "type_vocab_size": 2,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        passed={},
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": ModelType(
        read={
            **dict.fromkeys(("vocab_size", "n_layers", "n_heads", "dim", "hidden_dim"), ...),
            "max_position_embeddings": 512,
            "dropout": 0.1,
        },
        # The file has sinusoids as position embeddings.
        activation="activation",
        dropouts=("dropout", "attention_dropout"),
    ),
    "gpt2": ModelType(
        read={
            **dict.fromkeys(("vocab_size", "n_embd", "n_layer", "n_head"), ...),
            "n_positions": 1024,
            "resid_pdrop": 0.1,
        },
        passed={"n_inner": ("intermediate_dim", None)},
        required={
            "layer_norm_epsilon": (1e-5, (1e-5,)),
            "scale_attn_weights": (True, (True,)),
            "scale_attn_by_inverse_layer_idx": (False, (False,)),
            "add_cross_attention": (False, (False,)),
        },
        activation="activation_function",
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    ),
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": dataclasses.replace(
        _QWEN2,
        read={**_QWEN2.read, "head_dim": 128},
        required={
            **{name: values for name, values in _QWEN2.required.items() if name != "head_dim"},
            "attention_bias": (False, (False,)),
            "rms_norm_eps": (1e-6, (1e-6,)),  # fixed in KerasHub's norms of queries and keys
        },
    ),
    "gemma": _GEMMA,
    "gemma2": dataclasses.replace(
        _GEMMA,
        read={
            **_GEMMA.read,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
            "sliding_window": 4096,
        },
        required={
            **_GEMMA.required,
            "hidden_activation": ("gelu_pytorch_tanh", ("gelu_pytorch_tanh",)),
            "query_pre_attn_scalar": (
                256,
                lambda config: (config.get("head_dim"), config["hidden_size"] // config["num_attention_heads"]),
            ),
            "layer_types": (None, _alternating),
        },
    ),
    "bart": ModelType(
        read={
            **dict.fromkeys(
                ("vocab_size", "d_model", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads"), ...
            ),
            "max_position_embeddings": 1024,
            "dropout": 0.1,
        },
        required={
            "decoder_layers": (None, _at("encoder_layers")),
            "num_hidden_layers": (None, _at("encoder_layers")),
            "decoder_ffn_dim": (None, _at("encoder_ffn_dim")),
            "decoder_attention_heads": (None, _at("encoder_attention_heads")),
            "scale_embedding": (False, (False,)),
            "normalize_embedding": (True, (True,)),
            **dict.fromkeys(
                ("normalize_before", "add_final_layer_norm", "add_bias_logits", "static_position_embeddings"),
                (False, (False,)),
            ),
        },
        activation="activation_function",
        dropouts=("dropout", "attention_dropout", "activation_dropout"),
    ),
}
# Settings for names, token ids, initial weights, heads, generation, and other ways to compute the same logits. The
# tensors show whether output weights are tied.
_WITHOUT_EFFECT = re.compile(
    r"_\w+|architectures|model_type|transformers_version|torch_dtype|dtype|\w*token_ids?|finetuning_task|problem_type|"
    r"use_cache|cache_implementation|initializer_\w+|init_std|gradient_checkpointing|output_\w+|return_dict\w*|"
    r"id2label|label2id|num_labels|task_specific_params|summary_\w+|\w+_layerdrop|pretraining_tp|classifier_dropout\w*|"
    r"classif_dropout|seq_classif_dropout|qa_dropout|tokenizer_class|is_encoder_decoder|tie_\w+|unsloth_\w+|"
    r"attn_implementation|torchscript|use_bfloat16|chunk_size_feed_forward|directionality|pooler_\w+|"
    r"n_ctx|n_special|predict_special_tokens|reorder_and_upcast_attn|max_position_embeddings|max_window_layers|"
    r"sliding_window_pattern|sinusoidal_pos_embds|extra_pos_embeddings|gap_size|num_memory_blocks|net_structure_type|"
    r"down_scale_factor|classif\w*|"
    r"max_length|min_length|do_sample|early_stopping|num_beams|num_beam_groups|diversity_penalty|temperature|top_k|"
    r"top_p|typical_p|repetition_penalty|length_penalty|no_repeat_ngram_size|encoder_no_repeat_ngram_size|"
    r"num_return_sequences|remove_invalid_values|prefix|force_bos_token_to_be_generated"
)
_LLAMA3 = {
    "factor": "rope_frequency_adjustment_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "rope_pretraining_sequence_length",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings in use. `config`: for KerasHub's converter. `keywords`: for its backbone; they override `config`.

    `activation`: a value of `ACTIVATIONS`, None if the type has a fixed one. `notes`: lines for people.
    """

    config: Mapping[str, Any]
    keywords: Mapping[str, Any]
    activation: str | None
    notes: tuple[str, ...]


def read(model: str, config: Mapping[str, Any]) -> Settings:
    """Return the settings in a config.json. Raises: ConfigError if KerasHub would compute different logits."""
    name = str(config["model_type"])
    if (kind := TYPES.get(name)) is None:
        raise ConfigError(
            f"--model {model}: config.json has the model type {name!r:.60}, expected one of {', '.join(TYPES)}",
            remedy="convert the model with KerasHub's save_to_preset, compare the logits, and give the new folder",
        )
    whole = {**{setting: default for setting, default in kind.read.items() if default is not ...}, **config}
    refused: dict[str, tuple[Any, str]] = {}
    keywords = {word: whole.get(setting, default) for setting, (word, default) in kind.passed.items()}
    if kind.rope:
        rope, refused = _rope(kind, whole)
        keywords |= {} if "rope_theta" in kind.required else rope
        for field in ("rope_scaling", "rope_parameters"):
            whole.pop(field, None)
        whole["rope_theta"] = rope["rope_max_wavelength"]
    refused |= _refused(kind, whole)
    activation = None
    if kind.activation is not None:
        used = str(whole.get(kind.activation) or ("gelu_new" if name in ("albert", "gpt2") else "gelu"))
        if (activation := ACTIVATIONS.get(used)) is None:
            refused[kind.activation] = (used, " or ".join(ACTIVATIONS))
    if refused:
        listing = "; ".join(f"{entry} {value!r:.60}, expected {right}" for entry, (value, right) in refused.items())
        raise ConfigError(
            f"--model {model}: config.json has settings that the trainer's {name} does not support: {listing}",
            remedy="choose another checkpoint; if a setting does not affect the logits, remove it from config.json in "
            "a copy of the folder",
        )
    if "num_key_value_heads" in kind.read and whole["num_key_value_heads"] is None:
        whole["num_key_value_heads"] = whole["num_attention_heads"]
    if name == "bart":
        whole["num_hidden_layers"] = whole["encoder_layers"]
    dropout, notes = _dropout(kind, whole)
    keywords = {word: value for word, value in {**keywords, **dropout}.items() if value is not None}
    return Settings(config=whole, keywords=keywords, activation=activation, notes=notes)


def _refused(kind: ModelType, config: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    refused = {}
    for name, (default, allowed) in kind.required.items():
        values = allowed(config) if callable(allowed) else allowed
        if (value := config.get(name, default)) not in values:
            refused[name] = (value, " or ".join(str(other) for other in values if other is not None) or "none")
    known = {
        *kind.read,
        *kind.passed,
        *kind.required,
        *kind.dropouts,
        kind.activation,
        "rope_theta" if kind.rope else "",
    }
    for name, value in config.items():
        off = value is None or value is False or value in ({}, [])
        if name not in known and not off and not _WITHOUT_EFFECT.fullmatch(name):
            refused[name] = (value, "no such setting")
    return refused


def _rope(kind: ModelType, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = {name: value for name, value in (config.get(field) or {}).items() if value is not None}
    scaling = str(rope.get("rope_type", rope.get("type", "default")))
    keywords: dict[str, Any] = {"rope_max_wavelength": rope.get("rope_theta") or config.get("rope_theta") or 10000.0}
    kinds: dict[str, dict[str, str]] = {"default": {}}
    kinds |= ({"linear": {"factor": kind.linear}} if kind.linear else {}) | ({"llama3": _LLAMA3} if kind.llama3 else {})
    if scaling not in kinds:
        return keywords, {field: (rope, f"rope_type {' or '.join(kinds)}")}
    refused = {}
    for name in kinds[scaling].keys() | rope.keys() - {"rope_type", "type", "rope_theta"}:
        if name not in kinds[scaling] and not (name == "partial_rotary_factor" and rope[name] == 1):
            refused[f"{field}.{name}"] = (rope[name], f"none with rope_type {scaling}")
        elif name not in rope:
            refused[f"{field}.{name}"] = (None, f"a number, with rope_type {scaling}")
        elif name in kinds[scaling]:
            keywords[kinds[scaling][name]] = rope[name]
    return keywords, refused


def _dropout(kind: ModelType, config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    rates = {name: config[name] for name in kind.dropouts if config.get(name) is not None}
    if not rates:
        return {}, ()
    used = rates.get(kind.dropouts[0], next(iter(rates.values())))
    others = ", ".join(f"{name} {rate:g}" for name, rate in rates.items() if rate != used)
    return {"dropout": used}, (
        f"warning: a dropout of {used:g} is used everywhere, instead of {others}",
    ) if others else ()
