"""A model's folder reads no file outside of it, and is refused before memory is allocated if its sizes do not fit."""

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipelines.train.models import fit
from tfrecord_io.errors import ConfigError

BERT = {"model_type": "bert", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2}
BERT |= {"rope_theta": 1_000_000, "max_length": 10**9}
SIZES = {"vocabulary_size": 100, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 32}
KERAS = {"class_name": "BertBackbone", "config": {**SIZES, "max_sequence_length": 16, "num_segments": 2}}
# Sizes of published checkpoints, and what their names are short for.
LONG = {"V": "vocab_size", "H": "hidden_size", "N": "num_hidden_layers", "I": "intermediate_size"}
LONG["E"] = "embedding_size"
# Type, elements, tensors, and sizes.
PUBLISHED: dict[str, tuple[str, float, int, str]] = {
    "bert-base": ("bert", 109e6, 199, "V=30522 H=768 N=12 I=3072"),
    "albert-base-v2": ("albert", 11.7e6, 25, "V=30000 H=768 E=128 N=12 outputs=30000"),
    "albert-xxlarge-v2": ("albert", 222e6, 25, "V=30000 H=4096 E=128 I=16384"),
    "electra-small": ("electra", 13.5e6, 200, "V=30522 H=256 E=128"),
    "distilbert": ("distilbert", 66e6, 100, "V=30522 dim=768 hidden_dim=3072 n_layers=6"),
    "t5-small": ("t5", 60.5e6, 131, "V=32128 d_model=512 d_ff=2048 num_layers=6 d_kv=64"),
    "gpt2": ("gpt2", 124e6, 148, "V=50257 n_embd=768 n_layer=12 n_positions=1024"),
    "esm2-8m": ("esm", 7.5e6, 100, "V=33 H=320 N=6"),
    "qwen2.5-0.5b": ("qwen2", 494e6, 290, "V=151936 H=896 N=24 I=4864 max_position_embeddings=32768"),
    "gemma3-270m": ("gemma3_text", 268e6, 236, "V=262144 H=640 N=18 max_position_embeddings=32768"),
    "tiny gemma": ("GemmaBackbone", 35_664, 20, "vocabulary_size=1000 hidden_dim=16 sliding_window_size=4096"),
    "llama3-8b": ("llama", 8.03e9, 291, "V=128256 H=4096 N=32 I=14336 max_position_embeddings=131072"),
}


def tensors() -> dict[str, np.ndarray]:
    shapes = {"embeddings.words": (100, 8), "embeddings.positions": (16, 8), "embeddings.types": (2, 8)}
    for layer in range(2):
        shapes |= {f"layer.{layer}.{name}": (8, 8) for name in ("query", "key", "value", "output")}
        shapes |= {f"layer.{layer}.up": (8, 32), f"layer.{layer}.down": (32, 8)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if "model_type" in config:
        save_file(tensors(), folder / "model.safetensors")
        return folder
    with h5py.File(folder / "model.weights.h5", "w") as file:
        for name, tensor in tensors().items():
            file[name] = tensor
    return folder


@pytest.mark.parametrize("config", [BERT, KERAS], ids=["transformers", "KerasHub"])
def test_every_size_that_the_tensors_do_not_have_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    fit.require_sound(folder_of(tmp_path / "whole", config), model="m")
    sizes = config.get("config", config)
    for name in sizes.keys() - {"model_type", "rope_theta", "max_length"}:
        changed = {**sizes, name: 100_000_000}
        folder = folder_of(tmp_path / name, changed if config is BERT else {**config, "config": changed})
        with pytest.raises(ConfigError, match=r"config\.json does not fit the weights \(") as caught:
            fit.require_sound(folder, model="m")
        assert caught.value.remedy


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_fit_their_weights(name: str) -> None:
    kind, elements, count, sizes = PUBLISHED[name]
    config = {LONG.get(size, size): int(number) for size, _, number in (pair.partition("=") for pair in sizes.split())}
    assert fit.misfit(kind, config, [round(int(elements) / count)] * count) is None


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "model.safetensors.index.json", "task.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_out_of_the_folder_and_a_pipe_are_refused(tmp_path: Path, file: str, kind: str) -> None:
    folder = folder_of(tmp_path / "model", BERT)
    (folder / file).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / file)
    else:
        (tmp_path / "mine").write_bytes(b"{}")
        (folder / file).symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=f"{file} is (not a regular file|a link to .*mine), expected a file of this"):
        fit.require_sound(folder, model="m")


@pytest.mark.parametrize("index", ["model.safetensors.index.json", "model.weights.json"])
@pytest.mark.parametrize("name", ["../mine.safetensors", "{}/mine.safetensors", ["model.safetensors", "../mine"]])
def test_an_index_that_names_a_file_outside_is_refused(tmp_path: Path, index: str, name: Any) -> None:
    folder = folder_of(tmp_path / "model", BERT)
    save_file(tensors(), tmp_path / "mine.safetensors")
    named = name.format(tmp_path) if isinstance(name, str) else name
    (folder / index).write_text(json.dumps({"weight_map": {"embeddings.words": named}}))
    with pytest.raises(ConfigError, match=f"{index} names the file .*mine.*, expected a file of this folder"):
        fit.require_sound(folder, model="m")


def test_a_snapshot_in_the_hubs_cache_is_read(tmp_path: Path) -> None:
    blobs, snapshot = folder_of(tmp_path / "blobs", BERT), tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", path.name))
    fit.require_sound(snapshot, model="m")
