"""Check the settings in config.json of a checkpoint of `transformers`.

KerasHub's converters ignore some settings, such as scaled positions. `FAMILIES` lists the supported settings. Any other
setting must have its default value in transformers, or be in `_WITHOUT_EFFECT`.
"""

import copy
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from pipelines.train.errors import said
from pipelines.train.models.families import FAMILIES, Family
from tfrecord_io.errors import ConfigError

# One name for each activation, by its names in transformers.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu"}
TYPES = [name for name, family in FAMILIES.items() if family.read]
# transformers puts `rope_theta` and `rope_scaling` of older files into `rope_parameters`.
_SCALING, _ROPE = "rope_scaling", "rope_parameters"
_MOST_LAYERS = 10_000  # transformers makes a list of the layers' types
_NEUTRAL = {"partial_rotary_factor": 1.0, "rope_theta": 10000.0}
# Settings for names, token ids, initial weights, heads, generation, and ways to compute the same logits. The tensors
# show whether output weights are tied.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a checkpoint, as KerasHub takes them.

    `config`: for KerasHub's converter. `keywords`: arguments for KerasHub's backbone, which override `config`.
    `activation`: a value of `ACTIVATIONS`; None if the model type has only one. `notes`: warnings, one per line.
    """

    config: Mapping[str, Any]
    keywords: Mapping[str, Any]
    activation: str | None
    notes: tuple[str, ...]


def read(model: str, config: Mapping[str, Any]) -> Settings:
    """Convert a config.json to `Settings`. Raises: ConfigError if KerasHub would compute other logits."""
    name = str(config["model_type"])
    if name not in TYPES:
        raise ConfigError(
            f"--model {model}: config.json has the model type {name!r:.60}, expected one of {', '.join(TYPES)}",
            remedy="convert the model with KerasHub's save_to_preset, compare the logits, and give the new folder",
        )
    family, whole = FAMILIES[name], _whole(model, config)
    rope, refused = _rope(family, config, whole) if family.rope else ({}, {})
    refused |= _refused(model, family, config, whole)
    activation = None if family.acts is None else ACTIVATIONS.get(str(whole[family.acts]))
    if family.acts is not None and activation is None:
        refused[family.acts] = (whole[family.acts], " or ".join(ACTIVATIONS))
    if refused:
        listing = "; ".join(f"{entry} {value!r:.60}, expected {right}" for entry, (value, right) in refused.items())
        raise ConfigError(
            f"--model {model}: config.json has settings that the trainer's {name} does not support: {listing}",
            remedy="choose another checkpoint; if a setting does not affect the logits, remove it from config.json in "
            "a copy of the folder",
        )
    rates = {setting: whole[setting] for setting in family.dropouts}
    dropout = rates[family.dropouts[0]]
    differing = ", ".join(f"{setting} {rate:g}" for setting, rate in rates.items() if rate != dropout)
    notes = (f"warning: a dropout of {dropout:g} is used everywhere, instead of {differing}",) if differing else ()
    passed = {word: whole[setting] for setting, word in family.passed.items() if whole[setting] is not None}
    # transformers drops the sliding_window of a Qwen that does not use it.
    config = {key: config.get(key) or value for key, value in whole.items() if key not in (_ROPE, _SCALING)}
    # KerasHub's converters read settings of older releases.
    if name == "bart":
        config["num_hidden_layers"] = whole["encoder_layers"]
    if family.rope:
        config["rope_theta"] = whole[_ROPE]["rope_theta"]
    return Settings(config=config, keywords={**passed, **rope, "dropout": dropout}, activation=activation, notes=notes)


def _whole(model: str, config: Mapping[str, Any]) -> dict[str, Any]:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # hides its warnings
    from transformers import AutoConfig

    try:
        if (layers := int(config.get("num_hidden_layers") or 0)) > _MOST_LAYERS:
            raise ValueError(f"num_hidden_layers is {layers:,}, expected at most {_MOST_LAYERS:,}")
        return dict(AutoConfig.for_model(**copy.deepcopy(dict(config))).to_dict())
    except Exception as error:  # of many types
        raise ConfigError(
            f"--model {model}: transformers cannot read config.json ({said(error)})",
            remedy="copy config.json again from the model's origin",
        ) from error


def _refused(
    model: str, family: Family, config: Mapping[str, Any], whole: Mapping[str, Any]
) -> dict[str, tuple[Any, str]]:
    refused = {}
    for name, allowed in family.fixed.items():
        values = allowed(whole) if callable(allowed) else allowed
        if name in whole and whole[name] not in values:
            refused[name] = (whole[name], " or ".join(str(value) for value in values if value is not None))
    known = {"model_type", *family.read, *family.passed, *family.fixed, *family.dropouts, family.acts}
    known |= {"rope_theta", _SCALING, _ROPE} if family.rope else set()
    unknown = [name for name in config if name not in known and not _WITHOUT_EFFECT.fullmatch(name)]
    chosen = _whole(model, {name: value for name, value in config.items() if name not in unknown})
    for name in unknown:
        value, usual = whole.get(name, config[name]), chosen.get(name)
        if value != usual and not (_is_off(value) and _is_off(usual)):
            refused[name] = (value, str(usual) if name in chosen else "no such setting")
    return refused


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ({}, [])


def _rope(
    family: Family, config: Mapping[str, Any], whole: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[Any, str]]]:
    field = _SCALING if config.get(_SCALING) else _ROPE
    rope = {name: value for name, value in whole[_ROPE].items() if value is not None}
    kind = rope["rope_type"]
    if (words := family.rope.get(kind)) is None:
        return {}, {field: (rope, f"rope_type {' or '.join(family.rope)}")}
    refused: dict[str, tuple[Any, str]] = {}
    for name in words.keys() | rope.keys() - {"rope_type", "type"}:
        if name not in rope:
            refused[f"{field}.{name}"] = (None, f"a number, with rope_type {kind}")
        elif name not in words and rope[name] != _NEUTRAL.get(name):
            refused[f"{field}.{name}"] = (rope[name], f"{_NEUTRAL.get(name, 'none')} with rope_type {kind}")
    return {words[name]: value for name, value in rope.items() if name in words}, refused
