"""BERT and GPT-2 in NumPy, from their papers, over weights by the names of `transformers`.

BERT: arXiv:1810.04805 on the encoder of arXiv:1706.03762, with layer norm after each sublayer. GPT-2: Radford et al.
2019, section 2.3: layer norm before each sublayer and once at the end. Both in float64, GELU in its tanh form
(arXiv:1606.08415, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["bert_logits", "gpt2_logits"]

Weights = Mapping[str, np.ndarray]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    grown = np.exp(x - x.max(axis=-1, keepdims=True))
    return grown / grown.sum(axis=-1, keepdims=True)


def norm(x: np.ndarray, weights: Weights, name: str, *, epsilon: float) -> np.ndarray:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """A weight of PyTorch's Linear is [out, in]."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def conv1d(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    """A weight of OpenAI's layer is [in, out]."""
    return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, heads: int, seen: np.ndarray) -> np.ndarray:
    """float64 [B, L, D]; `seen` bool [B or 1, L, L]: which position sees which."""
    (rows, length, width), size = q.shape, q.shape[-1] // heads
    q, k, v = (each.reshape(rows, length, heads, size).transpose(0, 2, 1, 3) for each in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(size)
    shares = softmax(np.where(seen[:, np.newaxis], scores, -1e9))
    return (shares @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)


def bert_states(weights: Weights, config: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64 [B, L, D]."""
    ids, mask, types = (inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert config["hidden_act"] == "gelu_new"
    epsilon, heads = config["layer_norm_eps"], config["num_attention_heads"]
    at = "bert.embeddings"
    x = weights[f"{at}.word_embeddings.weight"][ids] + weights[f"{at}.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + weights[f"{at}.token_type_embeddings.weight"][types], weights, f"{at}.LayerNorm", epsilon=epsilon)
    seen = np.broadcast_to(mask[:, np.newaxis] > 0, (len(ids), ids.shape[1], ids.shape[1]))
    for number in range(config["num_hidden_layers"]):
        at = f"bert.encoder.layer.{number}"
        q, k, v = (linear(x, weights, f"{at}.attention.self.{name}") for name in ("query", "key", "value"))
        found = linear(attention(q, k, v, heads=heads, seen=seen), weights, f"{at}.attention.output.dense")
        x = norm(x + found, weights, f"{at}.attention.output.LayerNorm", epsilon=epsilon)
        found = linear(gelu(linear(x, weights, f"{at}.intermediate.dense")), weights, f"{at}.output.dense")
        x = norm(x + found, weights, f"{at}.output.LayerNorm", epsilon=epsilon)
    return x


def bert_logits(weights: Weights, config: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the class in the config gives: [B, C], [B, L, C] or [B, L, V]."""
    [architecture], x = config["architectures"], bert_states(weights, config, inputs)
    if architecture == "BertForMaskedLM":
        at = "cls.predictions"
        x = gelu(linear(x, weights, f"{at}.transform.dense"))
        x = norm(x, weights, f"{at}.transform.LayerNorm", epsilon=config["layer_norm_eps"])
        return x @ weights["bert.embeddings.word_embeddings.weight"].T + weights[f"{at}.bias"]
    if architecture == "BertForSequenceClassification":
        return linear(np.tanh(linear(x[:, 0], weights, "bert.pooler.dense")), weights, "classifier")
    if architecture == "BertForQuestionAnswering":
        return linear(x, weights, "qa_outputs")
    assert architecture == "BertForTokenClassification"
    return linear(x, weights, "classifier")


def gpt2_logits(weights: Weights, config: Mapping[str, Any], ids: np.ndarray) -> np.ndarray:
    """float64 [B, L, V] of rows without padding."""
    assert config["activation_function"] == "gelu_new"
    epsilon, heads, length = config["layer_norm_epsilon"], config["n_head"], ids.shape[1]
    x = weights["transformer.wte.weight"][ids] + weights["transformer.wpe.weight"][:length]
    seen = np.tril(np.ones((1, length, length), bool))
    for number in range(config["n_layer"]):
        at = f"transformer.h.{number}"
        q, k, v = np.split(
            conv1d(norm(x, weights, f"{at}.ln_1", epsilon=epsilon), weights, f"{at}.attn.c_attn"), 3, axis=-1
        )
        x = x + conv1d(attention(q, k, v, heads=heads, seen=seen), weights, f"{at}.attn.c_proj")
        inner = gelu(conv1d(norm(x, weights, f"{at}.ln_2", epsilon=epsilon), weights, f"{at}.mlp.c_fc"))
        x = x + conv1d(inner, weights, f"{at}.mlp.c_proj")
    return norm(x, weights, "transformer.ln_f", epsilon=epsilon) @ weights["transformer.wte.weight"].T
