"""A checkpoint of `transformers`: KerasHub reads its backbone; the head, and what a backbone lacks, are read here.

    task       tensors of the file                              layers here
    mlm        cls.predictions.*, lm_head.*, … (`_MLM`)         head_dense, head_norm, head_bias
    classify   classifier.* behind a pooler                     logits: the rows of the dataset's own label names
    tokens     classifier.*                                     likewise
    span       qa_outputs.*                                     logits

A file of BERT or ALBERT may lack the pooler, which masked language models do not have: it then begins at random.
"""

import contextlib
import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from pipelines.train.config import Pooling
from pipelines.train.models import fit
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BERTS = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
# Dense layer, norm and bias of each model type's masked language model.
_MLM = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "roberta": _BERTS,
    "xlm-roberta": _BERTS,
}
_POOLERS = {"bert": "pooler.dense", "albert": "pooler"}
_CLASSIFIERS = {"classify": "classifier", "tokens": "classifier", "span": "qa_outputs"}
_HEADS = re.compile(
    r"(cls|lm_head|\w*classifier|qa_outputs|vocab_\w+|predictions|score|\w+_predictions|\w+_head|final_logits_bias)\b"
)
# Tied to the embedding, or read by KerasHub.
_TIED = (
    "lm_head.weight",
    "lm_head.decoder",
    "vocab_projector.weight",
    "cls.predictions.decoder",
    "predictions.decoder",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoint of transformers in a local folder. `files`: the file of each tensor."""

    model: str
    folder: Path
    config: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def has_mlm_head(self) -> bool:
        """Return whether the checkpoint has the head of a masked language model."""
        return _MLM.get(self._type, ("", "", ""))[2] in self.files

    @property
    def _type(self) -> str:
        return str(self.config["model_type"])

    @property
    def _lacks_pooler(self) -> bool:
        pooler = _POOLERS.get(self._type)
        return pooler is not None and not any(name.endswith(f"{pooler}.weight") for name in self.files)

    def tensor(self, *names: str) -> np.ndarray:
        """Return the first tensor of these names in the checkpoint. Raises: ConfigError if it has none of them."""
        name = next((each for each in names if each in self.files), None)
        if name is None:
            raise ConfigError(
                f"--model {self.model}: no tensor {names[0]!r}, which belongs to its head",
                remedy="save it with all of its weights, by save_pretrained of its class in transformers",
            )
        with safe_open(self.folder / self.files[name], framework="numpy") as file:
            return np.asarray(file.get_tensor(name))

    @contextlib.contextmanager
    def whole(self) -> Iterator[str]:
        """Yield a folder for KerasHub, with a random pooler if this one has none."""
        if not self._lacks_pooler:
            yield str(self.folder)
            return
        base = f"{self._type}." if any(name.startswith(f"{self._type}.") for name in self.files) else ""
        name, width = f"{base}{_POOLERS[self._type]}", int(self.config["hidden_size"])
        kernel = np.random.default_rng(0).normal(scale=0.02, size=(width, width)).astype(np.float32)
        made = {f"{name}.weight": kernel, f"{name}.bias": np.zeros(width, np.float32)}
        with tempfile.TemporaryDirectory() as folder:
            for path in self.folder.iterdir():
                if path.name != _INDEX:
                    Path(folder, path.name).symlink_to(path.resolve())
            save_file(made, Path(folder, "pooler.safetensors"))
            files = {**self.files, **dict.fromkeys(made, "pooler.safetensors")}
            Path(folder, _INDEX).write_text(json.dumps({"weight_map": files}), encoding="utf-8")
            yield folder

    def load_head(self, model: keras.Model, task: BoundTask, manifest: Manifest, *, pooling: Pooling) -> list[str]:
        """Load the head for the task, if the checkpoint has it; return lines on what is used and what is not.

        Raises: ConfigError if a classifier knows only some of the dataset's labels.
        """
        # The head of mlm is in a model with the backbone, nested in the whole model.
        layers = {inner.name: inner for layer in model.layers for inner in getattr(layer, "layers", [layer])}
        pools = pooling == "first" and self._type in _POOLERS and manifest.tokenizer.padding_side == "right"
        used: tuple[str, ...] = ()
        lines: list[str] = []
        if task.name == "mlm" and self.has_mlm_head:
            used = _MLM[self._type]
            self._load_mlm(layers)
            lines = ["its head for masked words is loaded"]
        elif self._has_classifier(task.name, pools=pools):
            used, lines = self._load_classifier(layers["logits"], task, manifest)
        if self._lacks_pooler and task.name == "classify" and pools:
            lines.append("warning: it has no pooler, which begins at random")
        heads = [name for name in self.files if _HEADS.match(name) and not name.startswith((*used, *_TIED))]
        if unused := sorted({name.removesuffix(".weight").removesuffix(".bias") for name in heads}):
            lines.append(f"warning: not used of it: {', '.join(unused)}")
        return [f"--model {self.model}: {line}" for line in lines]

    def _load_mlm(self, layers: Mapping[str, Any]) -> None:
        dense, norm, bias = _MLM[self._type]
        layers["head_dense"].set_weights([self.tensor(f"{dense}.weight").T, self.tensor(f"{dense}.bias")])
        scale, shift = self.tensor(f"{norm}.weight", f"{norm}.gamma"), self.tensor(f"{norm}.bias", f"{norm}.beta")
        layers["head_norm"].set_weights([scale, shift])
        layers["head_bias"].set_weights([np.zeros((1, len(self.tensor(bias)))), self.tensor(bias)])

    def _has_classifier(self, task: str, *, pools: bool) -> bool:
        """Return whether it has a classifier of the form that models of the task have here."""
        made_for = str((self.config.get("architectures") or [""])[0])
        fits = ("TokenClass" in made_for) == (task == "tokens") and (task != "classify" or pools)
        return fits and f"{_CLASSIFIERS.get(task)}.weight" in self.files and "pre_classifier.weight" not in self.files

    def _load_classifier(self, logits: Any, task: BoundTask, manifest: Manifest) -> tuple[tuple[str, ...], list[str]]:
        """Load the classifier, its outputs found by label name if there are any; return the layer read, and a line."""
        name, ours = _CLASSIFIERS[task.name], manifest.label_names
        kernel, bias = self.tensor(f"{name}.weight").T, self.tensor(f"{name}.bias")
        given = self.config.get("id2label") or {}
        theirs = [str(given.get(str(number), f"LABEL_{number}")) for number in range(len(bias))]
        listing = f"its classes are {', '.join(theirs[:5])}{' …' if len(theirs) > 5 else ''}"
        unknown = [each for each in ours or () if each not in theirs]
        if ours is None and len(theirs) == task.num_outputs:
            rows, line = list(range(len(bias))), f"its {name} is loaded"
        elif ours is None or len(unknown) == len(ours):
            return (), [f"{listing}, none of the dataset's"]
        elif unknown:
            raise ConfigError(
                f"--model {self.model}: {listing}, but dataset {manifest.name!r} has {unknown[0]!r}, expected all of "
                "its classes or none",
                remedy="build the data with the model's names of these classes, or begin from the model that the "
                "classifier was made from",
            )
        else:
            rows, line = [theirs.index(each) for each in ours], f"its {name} is loaded, its classes found by name"
        logits.set_weights([kernel[:, rows], bias[rows]])
        return (name,), [line]


def opened(model: str) -> Checkpoint | None:
    """Open the checkpoint of transformers that --model names, in a folder or on the hub; None if it is none."""
    hub_id = model.removeprefix("hf://") if model.startswith("hf://") else None
    if hub_id is not None:
        import huggingface_hub

        config_path = Path(huggingface_hub.hf_hub_download(hub_id, "config.json"))
    else:
        config_path = Path(model, "config.json")
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    if "model_type" not in config:
        return None
    folder = config_path.parent
    if hub_id is not None:
        folder = Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=["*.json", "model*.safetensors"]))
        fit.require_sound(folder, model=model)
    if (folder / _INDEX).is_file():
        files = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    else:
        with safe_open(folder / _FILE, framework="numpy") as file:
            files = dict.fromkeys(file.keys(), _FILE)
    return Checkpoint(model=model, folder=folder, config=config, files=files)
