"""Read a checkpoint of `transformers`: KerasHub reads the backbone, and this module the head and the rest.

The names of a head's tensors are in `FAMILIES` for mlm, otherwise in `TASKS`.
"""

import contextlib
import dataclasses
import json
import re
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import safetensors
from safetensors import safe_open
from safetensors.numpy import save_file

from pipelines.train.config import Pooling
from pipelines.train.models import fit, settings
from pipelines.train.models.families import FAMILIES, Family
from pipelines.train.models.settings import Settings
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest

_CONFIG, _FILE, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_HEADS = re.compile(
    r"^(cls|lm_head|\w*classifier|qa_outputs|vocab_\w+|predictions|score|\w+_predictions|\w+_head|final_logits_bias)\b"
    r"|(^|\.)pooler\."
)
# Output weights from states to tokens. They are shared with the embedding or read by KerasHub.
_OUTPUTS = re.compile(
    r"^((lm_head|lm_head\.decoder|vocab_projector|(cls\.)?predictions\.decoder)\.(weight|bias)|final_logits_bias)$"
)
# Masks and positions in old files of transformers.
_BUFFERS = re.compile(r"(\.attn\.(masked_)?bias|position_ids|token_type_ids|rotary_emb\.inv_freq)$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint of `transformers`, in a local folder.

    `model`: value of --model. `config`: content of config.json. `files`: each tensor's file name; empty if only
    settings are read. `read`: names of the tensors loaded so far.
    """

    model: str
    folder: Path
    config: Mapping[str, Any]
    settings: Settings
    files: Mapping[str, str]
    read: set[str] = dataclasses.field(default_factory=set)

    @property
    def has_mlm_head(self) -> bool:
        return (self._family.masked_head or [""])[-1] in self.files

    @property
    def _family(self) -> Family:
        return FAMILIES[self.config["model_type"]]

    @property
    def _lacks_pooler(self) -> bool:
        pooler = self._family.pooler
        return bool(pooler) and not any(name.endswith(f"{pooler}.weight") for name in self.files)

    def tensor(self, *names: str) -> np.ndarray:
        """Return the tensor of the first name that is in the checkpoint. Raises: ConfigError if none is."""
        name = next((name for name in names if name in self.files), None)
        if name is None:
            raise ConfigError(
                f"--model {self.model}: tensor {names[0]!r} of the head is missing",
                remedy="save the checkpoint with all weights, by save_pretrained of its class in transformers",
            )
        self.read.add(name)
        return self._value(name)

    def _value(self, name: str) -> np.ndarray:
        with safe_open(self.folder / self.files[name], framework="numpy") as file:
            return np.asarray(file.get_tensor(name))

    @contextlib.contextmanager
    def whole(self) -> Iterator[str]:
        """Yield a temporary folder with the checkpoint and `settings.config`, for KerasHub to load the backbone.

        If the checkpoint lacks a pooler that KerasHub needs, the folder has a random one. Tensors that KerasHub loads
        are added to `read`.
        """
        lacks_pooler = bool(self.files) and self._lacks_pooler
        with tempfile.TemporaryDirectory() as folder, _recorded(self.read):
            for path in self.folder.iterdir():
                if path.name != _CONFIG and not (path.name == _INDEX and lacks_pooler):
                    Path(folder, path.name).symlink_to(path.resolve())
            Path(folder, _CONFIG).write_text(json.dumps(self.settings.config), encoding="utf-8")
            if lacks_pooler:
                self._add_pooler(Path(folder))
            yield folder

    def _add_pooler(self, folder: Path) -> None:
        prefix = f"{self.config['model_type']}."
        base = prefix if any(name.startswith(prefix) for name in self.files) else ""
        name, width = f"{base}{self._family.pooler}", int(self.config["hidden_size"])
        kernel = np.random.default_rng(0).normal(scale=0.02, size=(width, width)).astype(np.float32)
        pooler = {f"{name}.weight": kernel, f"{name}.bias": np.zeros(width, np.float32)}
        save_file(pooler, folder / "pooler.safetensors")
        files = {**self.files, **dict.fromkeys(pooler, "pooler.safetensors")}
        (folder / _INDEX).write_text(json.dumps({"weight_map": files}), encoding="utf-8")

    def complete(self, backbone: Any) -> Any:
        """Add the tensor of `Family.folded`, if any, to the backbone's position embeddings. Return the backbone."""
        if self.files and (end := self._family.folded):
            names = (*(name for name in self.files if name.endswith(end)), end)
            backbone.embeddings.position_embedding.position_embeddings.assign_add(self.tensor(*names)[0])
        return backbone

    def load_head(self, model: keras.Model, task: BoundTask, manifest: Manifest, *, pooling: Pooling) -> list[str]:
        """Load the task's head into the model, if the checkpoint has one. Return messages about the checkpoint.

        `pooling`: how a row's states become one vector. Raises: ConfigError if a classifier has only some of the
        dataset's labels, or the model lacks a tensor that affects logits.
        """
        # The head of mlm is nested in the model.
        layers = {inner.name: inner for layer in model.layers for inner in getattr(layer, "layers", [layer])}
        pools = pooling == "first" and bool(self._family.pooler) and manifest.tokenizer.padding_side == "right"
        lines: list[str] = []
        if task.kind.head == "masked" and self.has_mlm_head:
            self._load_mlm(layers)
            lines = ["the head for masked words is loaded"]
        elif self._has_classifier(task, pools=pools):
            lines = self._load_classifier(layers["logits"], task, manifest)
        if self._lacks_pooler and task.kind.head == "rows" and pools:
            lines.append("warning: the checkpoint has no pooler, so a random one is used")
        most, needed = self.config.get("max_position_embeddings"), manifest.row_length
        if self._family.rope and isinstance(most, int) and needed > most:
            lines.append(
                f"warning: rows have up to {needed:,} tokens, and the checkpoint was trained with at most {most:,}"
            )
        unused = self._unused(task)
        if names := sorted({name.removesuffix(".weight").removesuffix(".bias") for name in unused}):
            lines.append(f"warning: not used: {', '.join(names)}")
        return [f"--model {self.model}: {line}" for line in (*lines, *self.settings.notes)]

    def _unused(self, task: BoundTask) -> list[str]:
        unused = [
            name
            for name in self.files
            if not (name in self.read or _BUFFERS.search(name) or self._is_tied(name))
            and not (_OUTPUTS.search(name) and name.endswith("bias") and not self._value(name).any())
        ]
        heads = [name for name in unused if _HEADS.search(name)]
        # These tensors affect the logits.
        wrong = [name for name in unused if name not in heads or (task.of_vocabulary and _OUTPUTS.search(name))]
        if wrong:
            listing = f"{', '.join(sorted(wrong)[:5])}{' …' if len(wrong) > 5 else ''}"
            raise ConfigError(
                f"--model {self.model}: the trainer's model cannot use {listing} of this checkpoint, expected its own "
                "tensors only, with output weights equal to the embedding",
                remedy="choose another checkpoint; ignoring these tensors would change the logits",
            )
        return heads

    def _is_tied(self, name: str) -> bool:
        ends = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "shared.weight")
        tied = [table for table in self.read if table.endswith((*ends, "predictions.bias")) or table == "lm_head.bias"]
        value = self._value(name)
        return any(np.array_equal(value, self._value(table)) for table in tied)

    def _load_mlm(self, layers: Mapping[str, Any]) -> None:
        dense, norm, bias = self._family.masked_head or ("", "", "")
        layers["head_dense"].set_weights([self.tensor(f"{dense}.weight").T, self.tensor(f"{dense}.bias")])
        scale, shift = self.tensor(f"{norm}.weight", f"{norm}.gamma"), self.tensor(f"{norm}.bias", f"{norm}.beta")
        layers["head_norm"].set_weights([scale, shift])
        layers["head_bias"].set_weights([np.zeros((1, len(self.tensor(bias)))), self.tensor(bias)])

    def _has_classifier(self, task: BoundTask, *, pools: bool) -> bool:
        made_for = str((self.config.get("architectures") or [""])[0])
        of_tokens, kind = "TokenClass" in made_for, task.kind
        fits = of_tokens == (kind.auto_class == "TokenClassification") and (
            kind.head != "rows" or pools or kind.hub_head == "score"
        )
        return fits and f"{kind.hub_head}.weight" in self.files and "pre_classifier.weight" not in self.files

    def _load_classifier(self, logits: Any, task: BoundTask, manifest: Manifest) -> list[str]:
        name, ours = task.kind.hub_head, manifest.label_names
        kernel = self._value(f"{name}.weight").T
        bias = self._value(f"{name}.bias") if f"{name}.bias" in self.files else np.zeros(kernel.shape[-1])
        by_id = self.config.get("id2label") or {}
        theirs = [str(by_id.get(str(number), f"LABEL_{number}")) for number in range(len(bias))]
        listing = f"the checkpoint's classes are {', '.join(theirs[:5])}{' …' if len(theirs) > 5 else ''}"
        unknown = [label for label in ours or () if label not in theirs]
        if ours is None and len(theirs) == task.num_outputs:
            rows, line = list(range(len(bias))), f"the layer {name} is loaded"
        elif ours is None or len(unknown) == len(ours):
            return [f"{listing}; the dataset has none of them, so a random layer {name} is used"]
        elif unknown:
            raise ConfigError(
                f"--model {self.model}: {listing}, but dataset {manifest.name!r} has {unknown[0]!r}, expected all of "
                "the dataset's classes or none",
                remedy="build the data with the model's class names, or start from the model that the classifier was "
                "trained from",
            )
        else:
            rows, line = [theirs.index(label) for label in ours], f"the layer {name} is loaded, with classes by name"
        logits.set_weights([kernel[:, rows], bias[rows]])
        self.read.update((f"{name}.weight", f"{name}.bias"))
        return [line]


class _Exact(np.ndarray):
    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        # KerasHub 0.32 rounds Mistral's weights to float16.
        return super().astype(np.float32 if dtype is np.float16 else dtype, *arguments, **options)


@contextlib.contextmanager
def _recorded(names: set[str]) -> Iterator[None]:
    real = safetensors.safe_open  # KerasHub reads tensors with it

    @contextlib.contextmanager
    def recording(*arguments: Any, **options: Any) -> Iterator[Any]:
        def get_tensor(name: str) -> np.ndarray:
            names.add(name)
            return np.asarray(file.get_tensor(name)).view(_Exact)

        with real(*arguments, **options) as file:
            yield types.SimpleNamespace(keys=file.keys, get_tensor=get_tensor)

    safetensors.safe_open = recording  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        safetensors.safe_open = real  # type: ignore[misc]


def opened(model: str, *, weights: bool = True) -> Checkpoint | None:
    """Open a checkpoint of transformers, in a local folder or on the Hub. Return None if `model` is no checkpoint.

    `model`: the value of --model. `weights`: whether to read more than settings. Raises: ConfigError if KerasHub would
    compute other logits.
    """
    hub_id = model.removeprefix("hf://") if model.startswith("hf://") else None
    if hub_id is not None:
        import huggingface_hub

        config_path = Path(huggingface_hub.hf_hub_download(hub_id, "config.json"))
    else:
        config_path = Path(model, _CONFIG)
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    if "model_type" not in config:
        return None
    folder, read, files = config_path.parent, settings.read(model, config), {}
    if weights and hub_id is not None:
        folder = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=["*.json", "model*.safetensors"]))
        fit.require_sound(folder, model=model)
    if weights and (folder / _INDEX).is_file():
        files = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    elif weights:
        with safe_open(folder / _FILE, framework="numpy") as file:
            files = dict.fromkeys(file.keys(), _FILE)
    return Checkpoint(model=model, folder=folder, config=config, settings=read, files=files)
