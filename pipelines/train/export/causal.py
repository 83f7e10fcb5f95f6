"""Decoders of `clm`, by KerasHub's own exporter; config.json gets the class, and the tokenizer's special ids.

The logits here are those of the embedding, as in a CausalLM of KerasHub: where its output has weights of its own, they
are in the file as the head.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors import safe_open

from pipelines.train.model_files import TrainedModel
from pipelines.train.models import names
from tfrecord_io.errors import ConfigError

__all__ = ["ARCHITECTURES", "write"]

# Of KerasHub 0.32's exporters those for text alone, with the class of transformers.
ARCHITECTURES = {
    "GPT2Backbone": "GPT2LMHeadModel",
    "Llama3Backbone": "LlamaForCausalLM",
    "GemmaBackbone": "GemmaForCausalLM",
    "MistralBackbone": "MistralForCausalLM",
    "QwenBackbone": "Qwen2ForCausalLM",
}


def write(backbone: Any, trained: TrainedModel, folder: Path) -> None:
    """Write config.json and model.safetensors. Raises: ConfigError if the model is of another task."""
    family = type(backbone).__name__
    if trained.task != "clm":
        raise ConfigError(
            f"--format transformers with a {family} trained for {trained.task}, expected one trained for clm",
            remedy="give --format saved-model or keras, or train a BERT",
        )
    if getattr(backbone.token_embedding, "tie_weights", True):
        backbone.export_to_transformers(str(folder))
    else:
        hub = names.keras_hub(trained.model).models
        whole = getattr(hub, family.replace("Backbone", "CausalLM"))(backbone=backbone, preprocessor=None)
        whole.export_to_transformers(str(folder))
    _require_all(backbone, family, folder / "model.safetensors")
    path, facts = folder / "config.json", trained.manifest.tokenizer
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {
        "architectures": [ARCHITECTURES[family]],
        "bos_token_id": facts.bos_id,
        "eos_token_id": facts.eos_id,
        "pad_token_id": facts.pad_id,
        "torch_dtype": "float32",
    }
    if family == "QwenBackbone":  # which KerasHub's reader asks for, and its exporter leaves out
        config["use_sliding_window"] = backbone.use_sliding_window_attention
        config["sliding_window"] = backbone.sliding_window_size
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _require_all(backbone: Any, family: str, path: Path) -> None:
    """Raises: ConfigError if not every weight of the backbone is in the file."""
    with safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        written = sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    if (expected := backbone.count_params()) != written:
        raise ConfigError(
            f"--format transformers with this {family}: KerasHub's exporter leaves out {expected - written:,} of "
            f"{expected:,} weights",
            remedy="give --format saved-model or keras",
        )
