"""Files of a training run for `predict` and `export`: the tokenizer, and a description of the model."""

import dataclasses
import math
import os
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from pipelines.train import model_files
from pipelines.train.predict import loading
from tests import building
from tests.train import training
from tests.train.finished import finished
from tfrecord_io.errors import ConfigError, FormatError, ReaderError


def test_a_training_that_was_not_finished_has_no_description(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ReaderError, match=r"--model-dir of a finished training run.*; .*interrupted"):
        model_files.read(str(tmp_path))


def test_a_metric_that_is_no_number_is_written_and_read(tmp_path: Path) -> None:
    # As Pearson's correlation of predictions that are all the same.
    trained = model_files.read(str(finished("classify", "tests.train.small:bag")))
    model_files.write(str(tmp_path), dataclasses.replace(trained, metrics={"pearson": math.nan, "loss": 0.5}))
    assert "NaN" not in (tmp_path / "model.json").read_text(encoding="utf-8")
    metrics = model_files.read(str(tmp_path)).metrics
    assert math.isnan(metrics["pearson"])
    assert metrics["loss"] == 0.5


@pytest.mark.parametrize(
    ("old", "new"),
    [('"version": 1', '"version": 2'), ('"classify"', '"divine"'), ("{", "["), ('"steps": 8', '"steps": "8"')],
)
def test_a_damaged_description_is_named(tmp_path: Path, old: str, new: str) -> None:
    shutil.copytree(finished("classify", "tests.train.small:bag"), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(FormatError, match=r"model\.json"):
        model_files.read(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 10**6},
        {"num_layers": 1000},
        {"hidden_dim": 10**7},
        {"vocabulary_size": 10**12},
        {"intermediate_dim": 10**9},
        {"num_layers": "many"},
        {"dtype": "float99"},
    ],
)
def test_a_description_of_no_possible_model_is_refused(changes: dict[str, object]) -> None:
    folder = str(finished("classify", "bert-tiny"))
    trained = model_files.read(folder)
    assert trained.backbone is not None
    config = {**trained.backbone["config"], **changes}
    with pytest.raises(FormatError, match=r"model\.json: a model with this description cannot be built"):
        loading.load_model(folder, dataclasses.replace(trained, backbone={**trained.backbone, "config": config}))


@pytest.mark.slow
def test_more_outputs_than_the_weights_have_are_refused() -> None:
    folder = str(finished("classify", "bert-tiny"))
    trained = dataclasses.replace(model_files.read(folder), num_outputs=8_000_000)
    with pytest.raises(FormatError, match=r"cannot be built \(outputs is 8,000,000 at width 128"):
        loading.load_model(folder, trained)


@pytest.mark.parametrize("file", ["model.json", "model.weights.h5"])
def test_a_pipe_is_refused(tmp_path: Path, file: str) -> None:
    shutil.copytree(finished("classify", "bert-tiny"), tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    with pytest.raises(ReaderError, match=f"{file} is a link or not a file"):
        loading.load_model(str(tmp_path), model_files.read(str(tmp_path)))


@pytest.mark.slow
def test_a_training_on_an_earlier_manifest_copies_the_tokenizer_beside_it(tmp_path: Path) -> None:
    data = shutil.copytree(training.data(), tmp_path / "data")
    manifest = (data / "manifest.json").rename(data / "manifest-0.json")
    outcome = training.command(tmp_path / "model", data=manifest, steps=1)
    assert outcome.status == 0, outcome.err
    assert building.files(tmp_path / "model" / "tokenizer") == building.files(data / "tokenizer")


def test_no_link_is_followed_and_no_other_file_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    data = tmp_path / "data"
    shutil.copytree(training.data() / "tokenizer", data / "tokenizer")
    (data / "tokenizer" / "id_rsa").write_text("no file of a tokenizer")
    model_files.copy_tokenizer(str(data), str(tmp_path / "model" / "tokenizer"))
    names = {path.name for path in (training.data() / "tokenizer").iterdir()}
    assert {path.name for path in (tmp_path / "model" / "tokenizer").iterdir()} == names
    (data / "tokenizer" / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(ReaderError, match=r"is a link or not a file.*; .*cp -rL"):
        model_files.copy_tokenizer(str(data), str(tmp_path / "again"))
    (tmp_path / "model.keras").symlink_to(tmp_path / "secret")
    with pytest.raises(ReaderError, match=r"model\.keras is a link"), loading.local_copy(str(tmp_path / "model.keras")):
        pass
    (tmp_path / "tokenizer").symlink_to(training.data() / "tokenizer")
    with pytest.raises(ReaderError, match="is a link or not a file"):
        model_files.copy_tokenizer(str(tmp_path), str(tmp_path / "third"))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), [("mlm", "bert-tiny"), ("clm", "gpt2-tiny"), ("classify", "bert-tiny")])
def test_the_files_of_a_model_give_the_same_logits_by_keras_alone_and_by_its_description(task: str, model: str) -> None:
    folder = finished(task, model)
    trained = model_files.read(str(folder))
    again, alone = loading.load_model(str(folder), trained).model, keras.models.load_model(folder / "model.keras")
    rng = np.random.default_rng(0)
    inputs = {name: np.ones((2, 16), np.int32) for name in again.input if name != "masked_positions"}
    inputs["input_ids"] = rng.integers(5, 1000, (2, 16)).astype(np.int32)
    if task == "mlm":
        inputs["masked_positions"] = np.array([[1, 3], [0, 2]], np.int32)
    np.testing.assert_array_equal(again(inputs, training=False), alone(inputs, training=False))


@pytest.mark.parametrize("name", ["BertTokenizer", "NoSuchBackbone"])
def test_a_description_can_name_nothing_but_a_backbone_of_kerashub(name: str) -> None:
    folder = str(finished("classify", "bert-tiny"))
    trained = model_files.read(folder)
    with pytest.raises(ConfigError, match="this version of KerasHub lacks"):
        loading.load_model(folder, dataclasses.replace(trained, backbone={"class": name, "config": {}}))
