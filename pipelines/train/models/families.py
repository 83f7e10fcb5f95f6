"""Table of model families, by model type in transformers.

A family with `scratch` can be trained from scratch as `FAMILY-SIZE`. A family with `read` can start from a checkpoint;
the module `settings` explains which of its settings are allowed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfrecord_io.objectives.labelled import StartToken

# Allowed values of a setting, or a function that computes them from all settings.
Allowed = tuple[Any, ...] | Callable[[Mapping[str, Any]], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models, as KerasHub and transformers define it.

    backbone, activation: KerasHub's class, and the activation of its layers.
    head_epsilon: epsilon of the layer norm in the head for `mlm`.
    scratch: keyword arguments for a backbone from scratch, each a value or the name of a size (see `_SAME`); None if
        this is not supported.
    keeps_apart: whether `backbones.keeping_apart` supports the family.
    unit_embedding: whether embeddings begin with deviation 1, and tied logits are divided by sqrt(width).
    inner_embedding: whether another layer contains the token embedding, so that Keras cannot load a model for mlm.
    masked_head: names of the dense layer, norm and bias of the masked language model in a checkpoint.
    pooler: name of the pooler's layer in a checkpoint.
    decoder_start: token that begins the decoder's input.
    causal_class: class of exported decoders in transformers.
    exported: settings that KerasHub's exporter omits or changes, each with the backbone's attribute.
    mixes_query: whether KerasHub's exporter (0.32) exchanges two dimensions of the query weights.

    About a checkpoint and its config.json:

    read: settings that KerasHub's converter reads.
    passed: settings that the converter ignores, each with the backbone's keyword argument that sets it.
    fixed: allowed values of other settings.
    acts: setting with the activation, one of `settings.ACTIVATIONS`; None if it is fixed.
    dropouts: settings with dropout rates. The rate of the first is used everywhere.
    rope: for each supported rope_type, the backbone's keyword argument for each number in rope_parameters; empty
        without rotary positions.
    folded: tensor whose first row KerasHub (0.32) does not add to the position embeddings.
    """

    backbone: str
    activation: str = "gelu_new"
    head_epsilon: float = 1e-12
    scratch: Mapping[str, Any] | None = None
    keeps_apart: bool = False
    unit_embedding: bool = False
    inner_embedding: bool = False
    masked_head: tuple[str, str, str] | None = None
    pooler: str = ""
    decoder_start: StartToken = "pad"
    causal_class: str = ""
    exported: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mixes_query: bool = False
    read: tuple[str, ...] = ()
    passed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Allowed] = dataclasses.field(default_factory=dict)
    acts: str | None = None
    dropouts: tuple[str, ...] = ()
    rope: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    folded: str = ""


# Keywords of KerasHub's backbones that are also the names of sizes.
_SAME = {name: name for name in ("num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")}
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_BERT = Family(
    backbone="BertBackbone",
    masked_head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    pooler="pooler.dense",
    read=(*_SIZES, "max_position_embeddings"),
    passed={"type_vocab_size": "num_segments"},
    fixed={"position_embedding_type": ("absolute",)},
    acts="hidden_act",
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
_ROBERTA = dataclasses.replace(
    _BERT,
    backbone="RobertaBackbone",
    activation="gelu",
    head_epsilon=1e-5,
    inner_embedding=True,
    masked_head=("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    pooler="",
    passed={},
    fixed={
        **_BERT.fixed,
        "layer_norm_eps": (1e-5,),
        "hidden_act": ("gelu",),
        "pad_token_id": (1,),  # positions begin after this id
        "type_vocab_size": (1,),
    },
    acts=None,
)
_THETA = {"rope_theta": "rope_max_wavelength"}
_LLAMA3 = {
    **_THETA,
    "factor": "rope_frequency_adjustment_factor",
    "low_freq_factor": "rope_low_freq_factor",
    "high_freq_factor": "rope_high_freq_factor",
    "original_max_position_embeddings": "rope_pretraining_sequence_length",
}
_LLAMA = Family(
    backbone="Llama3Backbone",
    causal_class="LlamaForCausalLM",
    read=(*_SIZES, "num_key_value_heads", "tie_word_embeddings"),
    passed={"rms_norm_eps": "layer_norm_epsilon"},
    fixed={"hidden_act": ("silu", "swish")},
    dropouts=("attention_dropout",),
    rope={"default": _THETA, "llama3": _LLAMA3},  # KerasHub's Llama ignores a linear factor
)
_MISTRAL = dataclasses.replace(
    _LLAMA,
    backbone="MistralBackbone",
    causal_class="MistralForCausalLM",
    exported={"head_dim": "head_dim"},
    read=(*_SIZES, "num_key_value_heads", "head_dim", "sliding_window", "rms_norm_eps"),
    passed={},
    fixed={**_LLAMA.fixed, "tie_word_embeddings": (False,)},
    rope={"default": _THETA, "linear": {**_THETA, "factor": "rope_scaling_factor"}},
)
_QWEN2 = dataclasses.replace(
    _MISTRAL,
    backbone="QwenBackbone",
    causal_class="Qwen2ForCausalLM",
    exported={"use_sliding_window": "use_sliding_window_attention", "sliding_window": "sliding_window_size"},
    read=(*_SIZES, "num_key_value_heads", "tie_word_embeddings", "sliding_window", "rms_norm_eps"),
    fixed={
        **_LLAMA.fixed,
        "head_dim": lambda config: (None, config["hidden_size"] // config["num_attention_heads"]),
    },
)
_GEMMA = Family(
    backbone="GemmaBackbone",
    causal_class="GemmaForCausalLM",
    mixes_query=True,
    read=(*_SIZES, "num_key_value_heads", "head_dim"),
    fixed={
        # "gelu" in old files means the tanh form, also in transformers.
        "hidden_act": ("gelu_pytorch_tanh", "gelu"),
        "hidden_activation": (None, "gelu_pytorch_tanh"),
    },
    dropouts=("attention_dropout",),
    rope={"default": {}},
)
FAMILIES: Mapping[str, Family] = {
    "bert": dataclasses.replace(_BERT, scratch=_SAME, keeps_apart=True),
    "gpt2": Family(
        backbone="GPT2Backbone",
        scratch=_SAME,
        keeps_apart=True,
        causal_class="GPT2LMHeadModel",
        read=("vocab_size", "n_embd", "n_layer", "n_head", "n_positions"),
        passed={"n_inner": "intermediate_dim"},
        acts="activation_function",
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    ),
    "t5": Family(  # T5 1.0 (arXiv:1910.10683): relative positions, no gates, one tied embedding
        backbone="T5Backbone",
        scratch={
            **{name: name for name in _SAME if name != "max_sequence_length"},
            "activation": "relu",
            "use_gated_activation": False,
        },
        unit_embedding=True,
    ),
    "bart": Family(
        backbone="BartBackbone",
        activation="gelu",
        decoder_start="eos",
        scratch=_SAME,
        read=(
            *("vocab_size", "d_model", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads"),
            "max_position_embeddings",
        ),
        fixed={
            "decoder_layers": lambda config: (config["encoder_layers"],),
            "num_hidden_layers": lambda config: (None, config["encoder_layers"]),
            "decoder_ffn_dim": lambda config: (config["encoder_ffn_dim"],),
            "decoder_attention_heads": lambda config: (config["encoder_attention_heads"],),
            "normalize_embedding": (None, True),
        },
        acts="activation_function",
        dropouts=("dropout", "attention_dropout", "activation_dropout"),
    ),
    "albert": dataclasses.replace(
        _BERT,
        backbone="AlbertBackbone",
        masked_head=("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        pooler="pooler",
        read=(*_BERT.read, "embedding_size", "num_hidden_groups", "inner_group_num", "type_vocab_size"),
        passed={},
    ),
    "distilbert": Family(
        backbone="DistilBertBackbone",
        activation="gelu",
        inner_embedding=True,
        masked_head=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        # The file has sinusoids as position embeddings.
        read=("vocab_size", "n_layers", "n_heads", "dim", "hidden_dim", "max_position_embeddings"),
        acts="activation",
        dropouts=("dropout", "attention_dropout"),
    ),
    "roberta": dataclasses.replace(_ROBERTA, folded="embeddings.token_type_embeddings.weight"),
    "xlm-roberta": dataclasses.replace(_ROBERTA, backbone="XLMRobertaBackbone"),
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": dataclasses.replace(
        _QWEN2,
        backbone="Qwen3Backbone",
        causal_class="",
        # The epsilon is fixed in KerasHub's norms of queries and keys.
        read=(*(name for name in _QWEN2.read if name != "rms_norm_eps"), "head_dim"),
        fixed=_LLAMA.fixed,
    ),
    "gemma": _GEMMA,
    "gemma2": dataclasses.replace(
        _GEMMA,
        causal_class="",
        read=(*_GEMMA.read, "final_logit_softcapping", "attn_logit_softcapping", "sliding_window"),
        fixed={
            **_GEMMA.fixed,
            "query_pre_attn_scalar": lambda config: (
                config["head_dim"],
                config["hidden_size"] // config["num_attention_heads"],
            ),
        },
    ),
}


def family_of(backbone: Any) -> Family:
    """Return the entry of FAMILIES for a backbone of KerasHub, or an entry of default values if there is none."""
    name = type(backbone).__name__
    return next((family for family in FAMILIES.values() if family.backbone == name), Family(backbone=name))
