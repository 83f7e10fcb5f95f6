"""Exports of trained models to transformers, made once, and BERT's heads computed by hand."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests import building
from tests.train import training
from tests.train.finished import done, finished


def data_of(task: str) -> Path:
    return {"tokens": training.tags, "span": training.questions}.get(task, training.data)()


def model_of(task: str) -> Path:
    if task in ("tokens", "span"):
        return finished(task, "bert-tiny", data=data_of(task))
    if task == "clm":
        return finished("clm", "gpt2-tiny")
    return finished(task, "bert-tiny", pooling="first")


@functools.cache
def exported(task: str) -> Path:
    """The export of a model, made once; only to be read."""
    output = building.new_folder() / "exported"
    done("export", model=model_of(task), format="transformers", output=output)
    return output


def bert_logits(task: str, weights: Mapping[str, np.ndarray], states: Mapping[str, Any]) -> np.ndarray:
    """Compute the task's logits from BERT's states, following modeling_bert.py."""

    def linear(x: Any, name: str) -> np.ndarray:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    if task == "classify":
        return linear(states["pooled_output"], "classifier")
    sequence = np.asarray(states["sequence_output"])
    if task != "mlm":
        return linear(sequence, "classifier" if task == "tokens" else "qa_outputs")
    at = "cls.predictions"
    x = np.asarray(keras.activations.gelu(linear(sequence, f"{at}.transform.dense"), approximate=True))
    x = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
    x = x * weights[f"{at}.transform.LayerNorm.weight"] + weights[f"{at}.transform.LayerNorm.bias"]
    return np.asarray(x @ weights["bert.embeddings.word_embeddings.weight"].T + weights[f"{at}.bias"])
