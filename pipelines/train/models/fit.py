"""Check that the sizes in a model's config fit its tensors, before memory is allocated.

The weights of a transformer of width D have at least as many elements as each of these products:

    vocabulary * D     D * any other dimension     layers * D * (D + width of the feed-forward)     outputs * D
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
from safetensors import safe_open

from tfrecord_io import local_paths
from tfrecord_io.errors import ConfigError

_READ = (".json", ".safetensors", ".h5")
_INDEXES = ("model.safetensors.index.json", "model.weights.json")
_MOST_JSON_BYTES = 64 << 20
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_LAYERS = re.compile(r"layers?$")
_FORWARD = re.compile(r"intermediate_(size|dim)|d_ff|n_inner|\w*ffn_dim")
_ROWS = re.compile(r"vocab|position|sequence_length|outputs$")
_DIMENSIONS = re.compile(r"\w*(size|dim|model|embd|ff|inner|heads?|experts|groups|labels|segments)")
# Models with an embedding narrower than the layers. ALBERT's layers share weights.
_NARROW = re.compile("albert|electra", re.IGNORECASE)
# Models that compute positions and store none.
_ROTARY = re.compile("llama|mistral|mixtral|gemma|qwen|phi", re.IGNORECASE)
# Settings of attention, not dimensions of weights.
_REACH = re.compile("window|chunk")


def in_hdf5(*paths: str | Path) -> list[int]:
    """Return each tensor's number of elements in HDF5 files, without following links in them. Raises: OSError."""
    sizes: list[int] = []

    def add(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):  # a compressed one may claim more elements than it has bytes
            sizes.append(min(math.prod(item.shape), item.id.get_storage_size()))

    for path in paths:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    return sizes


def in_safetensors(*paths: str | Path) -> list[int]:
    """Return each tensor's number of elements in safetensors files. Raises: SafetensorError."""
    sizes = []
    for path in paths:
        with safe_open(path, framework="numpy") as file:
            sizes += [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
    return sizes


def misfit(kind: str, config: Mapping[str, Any], stored: Sequence[int], *, outputs: int = 0) -> str | None:
    """Describe the first size in a backbone's config that is too large for its stored tensors; None if all fit.

    `kind`: the model's type in transformers or class in KerasHub. `stored`: each tensor's number of elements.
    `outputs`: number of the head's outputs.
    """
    elements = sum(stored)
    text = config.get("text_config")
    entries = {**(text if isinstance(text, Mapping) else {}), **config, "outputs": outputs}
    sizes = {name: value for name, value in entries.items() if type(value) in (int, float)}
    width = max((sizes[name] for name in _WIDTHS if name in sizes), default=sizes.get("hidden_dim", 1))
    narrow = min(sizes.get("embedding_size", sizes.get("embedding_dim", width)), width)
    rows = narrow if _NARROW.search(kind) else width
    forward = max((value for name, value in sizes.items() if _FORWARD.fullmatch(name)), default=0)
    layer = 1 if _NARROW.search(kind) else width * (width + forward)
    for name, value in sizes.items():
        if _REACH.search(name) or ("position" in name and _ROTARY.search(kind)):
            continue
        if _LAYERS.search(name):
            fits = value <= len(stored) and value * layer <= elements
        elif _ROWS.search(name):
            fits = value * rows <= elements
        else:
            fits = not _DIMENSIONS.fullmatch(name) or value * width <= elements
        if not fits:
            return f"{name} is {value:,} at width {width:,}, but the weights have {elements:,} elements"
    return None


def require_sound(folder: str | Path, *, model: str) -> None:
    """Check that a model's folder refers to no file outside of it, and that the sizes in config.json fit its weights.

    `model`: value of --model. Raises: ConfigError; OSError, ValueError or SafetensorError if a file is damaged.
    """
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(_READ)]
    for name in names:
        path = os.path.realpath(os.path.join(folder, name))
        inside = local_paths.is_inside(path, folder)
        if not inside or not os.path.isfile(path):
            problem = "not a regular file" if inside else f"a link to {path}"
            raise ConfigError(
                f"--model {model}: {name} is {problem}, expected a file of this folder",
                remedy=f"if you trust the model, make a copy without links: cp -rL {folder} COPY",
            )
    for index in set(_INDEXES) & set(names):
        for name in local_paths.texts_in(_json(folder, index).get("weight_map")):
            if name not in names:
                raise ConfigError(
                    f"--model {model}: {index} names the file {name!r:.200}, expected a file of this folder",
                    remedy="copy the model's folder again, with all its files",
                )
    if "config.json" not in names:
        return
    config = _json(folder, "config.json")
    described = config.get("config", config)
    weights = [name for name in names if name.endswith(".safetensors")] if "model_type" in config else []
    packed = [name for name in names if name.startswith("model") and name.endswith(".weights.h5")]
    paths = [os.path.join(folder, name) for name in weights or packed]
    stored = (in_safetensors if weights else in_hdf5)(*paths)
    kind = str(config.get("model_type", config.get("class_name")))
    if stored and isinstance(described, Mapping) and (entry := misfit(kind, described, stored)):
        raise ConfigError(
            f"--model {model}: config.json does not fit the weights ({entry})",
            remedy="copy the model's folder again from its origin",
        )


def _json(folder: str | Path, name: str) -> dict[str, Any]:
    if (size := os.path.getsize(path := os.path.join(folder, name))) > _MOST_JSON_BYTES:
        raise ValueError(f"{name}: {size:,} bytes, expected at most {_MOST_JSON_BYTES:,}")
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{name}: expected a JSON object")
    return content
