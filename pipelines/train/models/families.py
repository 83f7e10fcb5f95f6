"""Table of model families, by model type in transformers.

A family with `scratch` can be trained from scratch as `FAMILY-SIZE`. `settings.TYPES` has the checkpoints' settings.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Keywords of KerasHub's backbones that are also the names of sizes.
_SAME = {name: name for name in ("num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Entry of a family.

    backbone, activation: KerasHub's class, and the activation of its layers.
    head_epsilon: epsilon of the norm in the head for `mlm`.
    scratch: keywords of a backbone from scratch, with names of sizes (see `_SAME`) or other values; None if the family
        cannot be trained from scratch.
    keeps_apart: whether `backbones.keeping_apart` supports the family.
    masked_head: dense layer, norm and bias of the masked language model in a checkpoint.
    causal_class: class of exported decoders in transformers.
    """

    backbone: str
    activation: str = "gelu_new"
    head_epsilon: float = 1e-12
    scratch: Mapping[str, Any] | None = None
    keeps_apart: bool = False
    masked_head: tuple[str, str, str] | None = None
    pooler: str = ""
    causal_class: str = ""


_ROBERTA_HEAD = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        backbone="BertBackbone",
        scratch=_SAME,
        keeps_apart=True,
        masked_head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        pooler="pooler.dense",
    ),
    "gpt2": Family(backbone="GPT2Backbone", scratch=_SAME, keeps_apart=True, causal_class="GPT2LMHeadModel"),
    "t5": Family(  # T5 1.0: relative positions, no gates, one tied embedding
        backbone="T5Backbone",
        scratch={
            **{name: name for name in _SAME if name != "max_sequence_length"},
            "activation": "relu",
            "use_gated_activation": False,
        },
    ),
    "bart": Family(backbone="BartBackbone", activation="gelu", scratch=_SAME),
    "albert": Family(
        backbone="AlbertBackbone",
        masked_head=("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
        pooler="pooler",
    ),
    "distilbert": Family(
        backbone="DistilBertBackbone",
        activation="gelu",
        masked_head=("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    ),
    "roberta": Family(backbone="RobertaBackbone", activation="gelu", head_epsilon=1e-5, masked_head=_ROBERTA_HEAD),
    "xlm-roberta": Family(
        backbone="XLMRobertaBackbone", activation="gelu", head_epsilon=1e-5, masked_head=_ROBERTA_HEAD
    ),
    "llama": Family(backbone="Llama3Backbone", causal_class="LlamaForCausalLM"),
    "mistral": Family(backbone="MistralBackbone", causal_class="MistralForCausalLM"),
    "qwen2": Family(backbone="QwenBackbone", causal_class="Qwen2ForCausalLM"),
    "qwen3": Family(backbone="Qwen3Backbone"),
    "gemma": Family(backbone="GemmaBackbone", causal_class="GemmaForCausalLM"),
    "gemma2": Family(backbone="GemmaBackbone"),
}
_OTHER = Family(backbone="")


def family_of(backbone: Any) -> Family:
    """Return the entry of a backbone's family, or one with defaults if the family has none."""
    name = type(backbone).__name__
    return next((family for family in FAMILIES.values() if family.backbone == name), _OTHER)
