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
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from pipelines.train.config import Pooling
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
_OF_EMBEDDING = re.compile(r"lm_head\.weight|vocab_projector\.weight|.*decoder\.(weight|bias)")
_UNNAMED = re.compile(r"LABEL_\d+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoint of transformers in a local folder. `files`: the file of each tensor."""

    model: str
    folder: Path
    config: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def has_mlm_head(self) -> bool:
        """Return whether the head of a masked language model is in it."""
        return _MLM.get(self._type, ("", "", ""))[2] in self.files

    @property
    def _type(self) -> str:
        return str(self.config["model_type"])

    @property
    def _lacks_pooler(self) -> bool:
        pooler = _POOLERS.get(self._type)
        return pooler is not None and not any(name.endswith(f"{pooler}.weight") for name in self.files)

    def tensor(self, *names: str) -> np.ndarray:
        """Return the first of these tensors that is there. Raises: ConfigError if none is."""
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
        pooler, prefix = _POOLERS[self._type], f"{self._type}."
        if not any(name.startswith(prefix) for name in self.files):
            prefix = ""
        width = int(self.config["hidden_size"])
        kernel = np.random.default_rng(0).normal(scale=0.02, size=(width, width)).astype(np.float32)
        made = {f"{prefix}{pooler}.weight": kernel, f"{prefix}{pooler}.bias": np.zeros(width, np.float32)}
        with tempfile.TemporaryDirectory() as name:
            for path in self.folder.iterdir():
                if path.name != _INDEX:
                    Path(name, path.name).symlink_to(path.resolve())
            save_file(made, str(Path(name, "pooler.safetensors")))
            files = {**self.files, **dict.fromkeys(made, "pooler.safetensors")}
            Path(name, _INDEX).write_text(json.dumps({"weight_map": files}), encoding="utf-8")
            yield name

    def load_head(self, model: keras.Model, task: BoundTask, manifest: Manifest, *, pooling: Pooling) -> list[str]:
        """Load the head for the task, if the checkpoint has it; return lines on what is used and what is not.

        Raises: ConfigError if a classifier knows only some of the dataset's labels.
        """
        used, lines = self._loaded(_layers(model), task, manifest, pooling=pooling)
        if self._lacks_pooler and task.name == "classify" and pooling == "first":
            lines.append(f"warning: --model {self.model} has no pooler: it begins at random")
        heads = [name for name in self.files if _HEADS.match(name) and not _OF_EMBEDDING.match(name)]
        if unused := sorted({name.rpartition(".")[0] or name for name in heads if not name.startswith(tuple(used))}):
            lines.append(f"warning: --model {self.model}: not used: {', '.join(unused)}")
        return lines

    def _loaded(
        self, layers: Mapping[str, Any], task: BoundTask, manifest: Manifest, *, pooling: Pooling
    ) -> tuple[Sequence[str], list[str]]:
        """Assign the head's weights; return the names that were read, or () and why not."""
        if task.name == "mlm" and self.has_mlm_head:
            dense, norm, bias = names = _MLM[self._type]
            layers["head_dense"].set_weights([self.tensor(f"{dense}.weight").T, self.tensor(f"{dense}.bias")])
            scale, shift = self.tensor(f"{norm}.weight", f"{norm}.gamma"), self.tensor(f"{norm}.bias", f"{norm}.beta")
            layers["head_norm"].set_weights([scale, shift])
            values = self.tensor(bias)
            layers["head_bias"].set_weights([np.zeros((1, len(values))), values])
            return names, [f"--model {self.model}: its head for masked words is loaded"]
        name = _CLASSIFIERS.get(task.name, "")
        if f"{name}.weight" not in self.files or any(each.startswith("pre_classifier") for each in self.files):
            return (), []
        architecture = str((self.config.get("architectures") or [""])[0])
        pools = pooling == "first" and self._type in _POOLERS and manifest.tokenizer.padding_side == "right"
        if ("TokenClass" in architecture) != (task.name == "tokens") or (task.name == "classify" and not pools):
            return (), []
        kernel, bias = self.tensor(f"{name}.weight").T, self.tensor(f"{name}.bias")
        rows, why = self._class_rows(manifest, count=len(bias), wanted=task.num_outputs)
        if not rows:
            return (), [why]
        layers["logits"].set_weights([kernel[:, rows], bias[rows]])
        return [name], [f"--model {self.model}: its {name} is loaded{why}"]

    def _class_rows(self, manifest: Manifest, *, count: int, wanted: int) -> tuple[list[int], str]:
        """Return the classifier's row of each output, by label names where both sides have them; [] and why not."""
        found = self.config.get("id2label") or {}
        theirs = [str(found.get(str(number), f"LABEL_{number}")) for number in range(count)]
        ours, named = manifest.label_names, not all(map(_UNNAMED.fullmatch, theirs))
        place = f"--model {self.model}: its classes are {', '.join(theirs[:5])}{' …' if count > 5 else ''}"
        if ours is None or not (named or count == 1):
            fits = count == wanted and ours is None
            return (list(range(count)), "") if fits else ([], f"{place}, not known by the dataset's names")
        known = [name for name in ours if name in theirs]
        if len(known) == len(ours):
            return [theirs.index(name) for name in ours], f", for {', '.join(ours[:5])}{' …' if len(ours) > 5 else ''}"
        if known:
            unknown = next(name for name in ours if name not in theirs)
            raise ConfigError(
                f"{place}, but dataset {manifest.name!r} has {unknown!r}, expected all of its classes or none",
                remedy="build the data with the model's names of these classes, or begin from the model that the "
                "classifier was made from",
            )
        return [], f"{place}, none of the dataset's"


def opened(model: str) -> Checkpoint | None:
    """Open the checkpoint of transformers that --model names, in a folder or on the hub; None if it is none."""
    if not (os.path.isdir(model) or model.startswith("hf://")):
        return None
    folder = Path(model)
    if model.startswith("hf://"):
        import huggingface_hub

        repository = model.removeprefix("hf://")
        folder = Path(huggingface_hub.hf_hub_download(repository, "config.json")).parent
    if not (folder / "config.json").is_file():
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "model_type" not in config:
        return None
    if model.startswith("hf://"):
        folder = Path(huggingface_hub.snapshot_download(repository, allow_patterns=["*.json", "model*.safetensors"]))
    if (folder / _INDEX).is_file():
        files = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    else:
        with safe_open(folder / _FILE, framework="numpy") as file:
            files = dict.fromkeys(file.keys(), _FILE)
    return Checkpoint(model=model, folder=folder, config=config, files=files)


def _layers(model: keras.Model) -> dict[str, Any]:
    """Return the head's layers by name; that of mlm is in a model with the backbone, nested in the whole model."""
    return {inner.name: inner for layer in model.layers for inner in getattr(layer, "layers", [layer])}
