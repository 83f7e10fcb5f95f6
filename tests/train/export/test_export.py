"""The folders of `train-tpu export` for programs other than `transformers`, and refusals."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train import models, setup
from pipelines.train.config import TrainConfig
from tests.train import training
from tests.train.finished import command, done, finished

BAG = "tests.train.small:bag"


def inputs() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(5, 1000, (3, 16)).astype(np.int32)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


@pytest.mark.slow
def test_a_keras_folder_holds_the_model_its_tokenizer_and_a_card_and_may_be_there_empty(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done("export", model=finished("classify", BAG), format="keras", output=f"{tmp_path}/out/", json=True)
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"README.md", "model.keras", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"}
    assert keras.models.load_model(tmp_path / "out" / "model.keras")(inputs()).shape == (3, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_saved_model_takes_ids_and_its_card_says_so(tmp_path: Path) -> None:
    folder = finished("classify", BAG)
    done("export", model=folder, format="saved-model", output=tmp_path / "out")
    serve = tf.saved_model.load(str(tmp_path / "out")).signatures["serving_default"]
    [logits] = serve(**{name: tf.constant(values) for name, values in inputs().items()}).values()
    expected = keras.models.load_model(folder / "model.keras")(inputs(), training=False)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert "takes int32 ids of the tokenizer" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "pooling", "remedy"),
    [
        ("bert-tiny", "auto", "train with --pooling first"),
        ("bert-tiny", "mean", "train with --pooling first"),
        ("bert-tiny", "last", "train with --pooling first"),
        ("bert-tiny", "first", None),
        ("gpt2-tiny", "auto", "train a BERT"),
    ],
)
def test_training_notes_at_its_start_that_transformers_has_no_class_for_the_model(
    tmp_path: Path, model: str, pooling: str, remedy: str | None
) -> None:
    options: dict[str, Any] = {"task": "classify", "model": model, "pooling": pooling, "tpu": "none"}
    job = setup.check(TrainConfig(data=str(training.data()), model_dir=str(tmp_path), **options))
    notes = models.build(job.config, job.data.manifest, job.task).notes
    assert ["cannot be exported to transformers" in note for note in notes] == [True] * (remedy is not None)
    assert all(note.endswith(f"to export it, {remedy}") for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (BAG, {}, "with your own model"),
        ("bert-tiny", {"pooling": "mean"}, "pooling mean"),
        ("gpt2-tiny", {}, "trained for classify"),
    ],
)
def test_a_model_of_which_transformers_has_no_class_is_refused(
    tmp_path: Path, model: str, options: dict[str, object], words: str
) -> None:
    folder = finished("classify", model, **options)
    cause, remedy = command("export", model=folder, format="transformers", output=tmp_path / "out").error
    assert words in cause
    assert "--format saved-model or keras" in remedy
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_never_replaced(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "out"
    if kind == "folder":
        output.mkdir()
        (output / "mine").touch()
    else:
        output.touch()
    outcome = command("export", model=finished("classify", BAG), format="keras", output=output)
    assert "the folder is not empty" in outcome.error[0]
    assert outcome.status == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    outcome = command("export", model=finished("classify", BAG), format="keras", output=tmp_path / "out")
    assert "cannot be written" in outcome.error[0]
