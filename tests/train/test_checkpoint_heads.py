"""Training runs from a checkpoint of transformers: loaded heads, their labels, and messages."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipelines.train import model_files, models, setup
from pipelines.train.config import TrainConfig
from pipelines.train.models import BuiltModel
from pipelines.train.models import checkpoint as backbone_checkpoint
from pipelines.train.predict import loading
from tests.support import checkpoints
from tests.support.bert_exports import bert_logits, exported
from tests.train import training
from tests.train.finished import done, finished
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError

pytestmark = pytest.mark.slow


def checkpoint(
    folder: Path, task: str, *, without: str = "-", rename: Mapping[str, str] = MappingProxyType({}), **config: object
) -> Path:
    """A checkpoint of BERT for a task, with a bias for each word, without some tensors, and some of other names."""
    shutil.copytree(exported(task), folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    if task == "mlm":
        size = len(tensors["cls.predictions.bias"])
        tensors["cls.predictions.bias"] = np.random.default_rng(1).normal(size=size).astype(np.float32)
    tensors = {name: tensor for name, tensor in tensors.items() if without not in name}
    for old, new in rename.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def begun(model: Path, task: str, *, data: Path | None = None) -> BuiltModel:
    options: dict[str, Any] = {"task": task, "model": str(model), "pooling": "first", "tpu": "none"}
    job = setup.check(TrainConfig(data=str(data or training.data()), model_dir=str(model / "run"), **options))
    return models.build(job.config, job.data.manifest, job.task)


def logits(built: BuiltModel, *, data: Path | None = None) -> tuple[Any, np.ndarray]:
    features = next(iter(reader.open(data or training.data()).dataset("train", global_batch_size=8, training=False)))
    inputs = {name: features[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids")}
    if "masked_positions" in built.model.input:
        length = inputs["input_ids"].shape[1]
        inputs["masked_positions"] = np.tile(np.arange(length, dtype=np.int32), (8, 1))
    return inputs, np.asarray(built.model(inputs, training=False))


# Dense layer, norm and bias of the head for masked words.
HEADS = {
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
}


def test_the_head_for_masked_words_is_loaded_and_a_pooler_may_be_missing(tmp_path: Path) -> None:
    built = begun(checkpoint(tmp_path, "mlm", without="pooler"), "mlm")
    assert built.notes == (f"--model {tmp_path}: the head for masked words is loaded",)
    inputs, outputs = logits(built)
    features = {"token_ids": inputs["input_ids"], "padding_mask": inputs["attention_mask"]}
    states = built.backbone({**features, "segment_ids": inputs["token_type_ids"]}, training=False)
    expected = bert_logits("mlm", load_file(tmp_path / "model.safetensors"), states)
    mask = inputs["attention_mask"].astype(bool)
    np.testing.assert_allclose(outputs[mask], expected[mask], atol=1e-4)


def test_a_model_with_the_loaded_head_is_written_and_read_as_a_whole(tmp_path: Path) -> None:
    folder = finished("mlm", str(checkpoint(tmp_path / "from", "mlm")))
    model = loading.load_model(str(folder), model_files.read(str(folder))).model
    bias = next(variable.numpy() for variable in model.variables if variable.path.endswith("head_bias/bias"))
    alone = keras.models.load_model(folder / "model.keras")
    assert any(np.array_equal(bias, variable.numpy()) for variable in alone.variables)
    done("export", model=folder, format="transformers", output=tmp_path / "to")
    np.testing.assert_array_equal(load_file(tmp_path / "to" / "model.safetensors")["cls.predictions.bias"], bias)


@pytest.mark.parametrize("kind", HEADS)
def test_the_head_of_another_architecture_has_other_names(tmp_path: Path, kind: str) -> None:
    vocab_size = reader.open(training.data()).manifest.tokenizer.vocab_size
    folder = checkpoints.write(tmp_path, kind, vocab_size=vocab_size)
    tensors = load_file(folder / "model.safetensors")
    built = begun(folder, "mlm")
    layers = {inner.name: inner for layer in built.model.layers for inner in getattr(layer, "layers", [layer])}
    assert type(built.backbone).__name__.lower() == f"{kind}backbone"
    loaded, not_exported = built.notes
    assert loaded == f"--model {tmp_path}: the head for masked words is loaded"
    assert "cannot be exported to transformers: the architecture is" in not_exported
    dense, norm, bias = HEADS[kind]
    np.testing.assert_array_equal(layers["head_dense"].kernel, tensors[f"{dense}.weight"].T)
    np.testing.assert_array_equal(layers["head_norm"].gamma, tensors[f"{norm}.weight"])
    np.testing.assert_array_equal(layers["head_bias"].bias, tensors[bias])
    assert layers["head_norm"].epsilon == (1e-5 if kind == "roberta" else 1e-12)


def test_a_classifiers_labels_are_the_datasets_of_the_same_names(tmp_path: Path) -> None:
    straight = begun(checkpoint(tmp_path / "a", "classify"), "classify")
    assert straight.notes == (f"--model {tmp_path / 'a'}: the layer classifier is loaded, with classes by name",)
    names = {"0": "positive", "1": "neutral", "2": "negative"}
    folder = checkpoint(tmp_path / "b", "classify", id2label=names)
    tensors = load_file(folder / "model.safetensors")
    for part in ("classifier.weight", "classifier.bias"):
        values = tensors[part]
        tensors[part] = np.stack([values[1], values[0] * 7, values[0]])
    save_file(tensors, folder / "model.safetensors")
    np.testing.assert_allclose(logits(begun(folder, "classify"))[1], logits(straight)[1], atol=1e-6)


@pytest.mark.parametrize(
    ("names", "words"),
    [({"0": "acrid", "1": "zesty"}, "acrid, zesty"), ({"0": "LABEL_0", "1": "LABEL_1"}, "LABEL_0, LABEL_1")],
)
def test_a_classifier_of_other_classes_is_named_as_not_used(tmp_path: Path, names: dict[str, str], words: str) -> None:
    folder = checkpoint(tmp_path, "classify", id2label=names)
    assert begun(folder, "classify").notes == (
        f"--model {folder}: the checkpoint's classes are {words}; the dataset has none of them, so a random layer "
        "classifier is used",
        f"--model {folder}: warning: not used: classifier",
    )


def test_a_class_that_a_classifier_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "classify", id2label={"0": "negative", "1": "zesty"})
    with pytest.raises(ConfigError, match=r"classes are negative, zesty, but dataset '.*' has 'positive'"):
        begun(folder, "classify")


def test_what_is_missing_or_not_used_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mlm", "mlm", without="pooler", rename={"bert.": ""})
    assert begun(folder, "classify").notes == (
        f"--model {folder}: warning: the checkpoint has no pooler, so a random one is used",
        f"--model {folder}: warning: not used: cls.predictions, cls.predictions.transform.LayerNorm, "
        "cls.predictions.transform.dense",
    )
    broken = checkpoint(tmp_path / "broken", "mlm", without="layer.1.output.dense.weight")
    with pytest.raises(ConfigError, match=r"layer\.1\.output\.dense\.weight") as caught:
        begun(broken, "mlm")
    assert caught.value.remedy.startswith("save the checkpoint with all weights")


def test_the_head_of_a_preset_is_named_too(tmp_path: Path) -> None:
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 16}
    vocab_size = reader.open(training.data()).manifest.tokenizer.vocab_size
    backbone = keras_hub.models.BertBackbone(vocabulary_size=vocab_size, **sizes)
    keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None).save_to_preset(str(tmp_path))
    assert begun(tmp_path, "mlm").notes == (f"warning: --model {tmp_path}: the head of KerasHub's task is not used",)


def test_a_checkpoint_on_the_hub_is_one_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path, "mlm", without="pooler")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda repo, name: str(folder / name))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo, **_: str(folder))
    from_hub = backbone_checkpoint.opened("hf://owner/name")
    assert from_hub is not None
    assert (from_hub.model, from_hub.folder, from_hub.has_mlm_head) == ("hf://owner/name", folder, True)
