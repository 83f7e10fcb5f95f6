"""Tiny random checkpoints of `transformers`, written without PyTorch: the tensors that its classes save, by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
_BERT = {**_SMALL, "max_position_embeddings": 66, "type_vocab_size": 2, "hidden_act": "gelu"}
_ROBERTA = {**_BERT, "layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
_DECODER = {**_SMALL, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_GEMMA = {**_DECODER, "num_key_value_heads": 1, "head_dim": 4, "tie_word_embeddings": True}
_SIDE = {"layers": 2, "ffn_dim": 24, "attention_heads": 4}
_BART = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _SIDE.items()}
# config.json of each model type, without its vocabulary.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bert": _BERT,
    "albert": {**_BERT, "embedding_size": 8},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 64},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": {**_DECODER, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "mistral": {**_DECODER, "sliding_window": 8, "rope_theta": 500.0},
    "qwen2": {**_DECODER, "use_sliding_window": False, "sliding_window": None},
    "qwen3": {**_DECODER, "head_dim": 8},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "query_pre_attn_scalar": 4, "sliding_window": 8},
    "bart": {"d_model": 16, "max_position_embeddings": 64, **_BART},
}
_Shapes = dict[str, tuple[int, ...]]


def write(folder: Path, kind: str, *, vocab_size: int, more: Mapping[str, int] = {}, **settings: object) -> Path:
    """Write config.json and model.safetensors, and return `folder`. `more`: names and sizes of other tensors."""
    config = {"vocab_size": vocab_size, **CONFIGS[kind], **settings}
    rng = np.random.default_rng(0)
    shapes = {**_TENSORS.get(kind, _decoder)(config), **{name: (size,) for name, size in more.items()}}
    tensors = {name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **config}), encoding="utf-8")
    return folder


def _dense(name: str, rows: int, columns: int) -> _Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str, size: int) -> _Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _embeddings(prefix: str, config: Mapping[str, Any], width: int, *, types: int = 0) -> _Shapes:
    return {
        f"{prefix}.word_embeddings.weight": (config["vocab_size"], width),
        f"{prefix}.position_embeddings.weight": (config["max_position_embeddings"], width),
        **({f"{prefix}.token_type_embeddings.weight": (types, width)} if types else {}),
        **_norm(f"{prefix}.LayerNorm", width),
    }


def _bert(config: Mapping[str, Any]) -> _Shapes:
    width, inner, base = config["hidden_size"], config["intermediate_size"], config.get("base", "bert")
    shapes = _embeddings(f"{base}.embeddings", config, width, types=config["type_vocab_size"])
    for number in range(config["num_hidden_layers"]):
        at = f"{base}.encoder.layer.{number}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= _dense(f"{at}.{name}", width, width)
        shapes |= _dense(f"{at}.intermediate.dense", inner, width) | _dense(f"{at}.output.dense", width, inner)
        shapes |= _norm(f"{at}.attention.output.LayerNorm", width) | _norm(f"{at}.output.LayerNorm", width)
    head = "cls.predictions.transform" if base == "bert" else "lm_head"
    norm, bias = ("LayerNorm", "cls.predictions.bias") if base == "bert" else ("layer_norm", "lm_head.bias")
    shapes |= _dense(f"{head}.dense", width, width) | _norm(f"{head}.{norm}", width)
    return {**shapes, bias: (config["vocab_size"],)}


def _roberta(config: Mapping[str, Any]) -> _Shapes:
    return _bert({**config, "base": "roberta"})


def _albert(config: Mapping[str, Any]) -> _Shapes:
    width, narrow = config["hidden_size"], config["embedding_size"]
    shapes = _embeddings("albert.embeddings", config, narrow, types=config["type_vocab_size"])
    shapes |= _dense("albert.encoder.embedding_hidden_mapping_in", width, narrow)
    at = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    for name in ("query", "key", "value", "dense"):
        shapes |= _dense(f"{at}.attention.{name}", width, width)
    shapes |= _norm(f"{at}.attention.LayerNorm", width) | _norm(f"{at}.full_layer_layer_norm", width)
    shapes |= _dense(f"{at}.ffn", config["intermediate_size"], width)
    shapes |= _dense(f"{at}.ffn_output", width, config["intermediate_size"])
    shapes |= _dense("predictions.dense", narrow, width) | _norm("predictions.LayerNorm", narrow)
    return {**shapes, "predictions.bias": (config["vocab_size"],)}


def _distilbert(config: Mapping[str, Any]) -> _Shapes:
    width, inner = config["dim"], config["hidden_dim"]
    shapes = _embeddings("distilbert.embeddings", config, width)
    for number in range(config["n_layers"]):
        at = f"distilbert.transformer.layer.{number}"
        for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
            shapes |= _dense(f"{at}.attention.{name}", width, width)
        shapes |= _dense(f"{at}.ffn.lin1", inner, width) | _dense(f"{at}.ffn.lin2", width, inner)
        shapes |= _norm(f"{at}.sa_layer_norm", width) | _norm(f"{at}.output_layer_norm", width)
    shapes |= _dense("vocab_transform", width, width) | _norm("vocab_layer_norm", width)
    return {**shapes, "vocab_projector.bias": (config["vocab_size"],)}


def _gpt2(config: Mapping[str, Any]) -> _Shapes:
    width, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    shapes: _Shapes = {"transformer.wte.weight": (config["vocab_size"], width)}
    shapes["transformer.wpe.weight"] = (config["n_positions"], width)
    for number in range(config["n_layer"]):
        at = f"transformer.h.{number}"
        sizes = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        for name, (rows, columns) in {**sizes, "mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}.items():
            shapes |= {f"{at}.{name}.weight": (rows, columns), f"{at}.{name}.bias": (columns,)}
        shapes |= _norm(f"{at}.ln_1", width) | _norm(f"{at}.ln_2", width)
    return shapes | _norm("transformer.ln_f", width)


def _decoder(config: Mapping[str, Any]) -> _Shapes:
    kind, width, heads = str(config.get("kind", "")), config["hidden_size"], config["num_attention_heads"]
    size, inner = config.get("head_dim") or width // heads, config["intermediate_size"]
    rows = {"q": heads * size, "k": config["num_key_value_heads"] * size, "v": config["num_key_value_heads"] * size}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if kind == "gemma2" else []
    shapes: _Shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}"
        for name, count in rows.items():
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (count, width)
            if kind == "qwen2":
                shapes[f"{at}.self_attn.{name}_proj.bias"] = (count,)
            if kind == "qwen3" and name != "v":
                shapes[f"{at}.self_attn.{name}_norm.weight"] = (size,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (width, heads * size)
        shapes |= {f"{at}.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (width, inner), **{f"{at}.{name}.weight": (width,) for name in norms}}
    return shapes if config["tie_word_embeddings"] else {**shapes, "lm_head.weight": (config["vocab_size"], width)}


def _of_kind(kind: str) -> Any:
    return lambda config: _decoder({**config, "kind": kind})


def _bart(config: Mapping[str, Any]) -> _Shapes:
    width, inner = config["d_model"], config["encoder_ffn_dim"]
    shapes: _Shapes = {"model.shared.weight": (config["vocab_size"], width)}
    for side in ("encoder", "decoder"):
        shapes[f"model.{side}.embed_positions.weight"] = (config["max_position_embeddings"] + 2, width)
        shapes |= _norm(f"model.{side}.layernorm_embedding", width)
        for number in range(config[f"{side}_layers"]):
            at = f"model.{side}.layers.{number}"
            for attention in ("self_attn", "encoder_attn")[: 1 if side == "encoder" else 2]:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes |= _dense(f"{at}.{attention}.{name}", width, width)
                shapes |= _norm(f"{at}.{attention}_layer_norm", width)
            shapes |= _dense(f"{at}.fc1", inner, width) | _dense(f"{at}.fc2", width, inner)
            shapes |= _norm(f"{at}.final_layer_norm", width)
    return shapes


_TENSORS: Mapping[str, Any] = {
    "bert": _bert,
    "albert": _albert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "bart": _bart,
    **{kind: _of_kind(kind) for kind in ("qwen2", "qwen3", "gemma2")},
}
