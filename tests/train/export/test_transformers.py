"""Folders for `transformers`: read back by KerasHub's own converter, and by NumPy under the names of `transformers`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import AutoTokenizer

from pipelines.train import model_files
from pipelines.train.export import exporting
from pipelines.train.predict import loading
from tests import building
from tests.train import training
from tests.train.export import numpy_models
from tests.train.finished import command, finished
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError

pytestmark = pytest.mark.slow

TAGS = building.REPOSITORY / "examples" / "tags"


def data_of(task: str) -> Path:
    if task == "tokens":
        return building.built(TAGS, layout="tokens", max_length=64)
    return training.questions() if task == "span" else training.data()


def model_of(task: str) -> Path:
    if task in ("tokens", "span"):
        return finished(task, "bert-tiny", data=data_of(task))
    if task == "clm":
        return finished("clm", "gpt2-tiny")
    return finished(task, "bert-tiny", pooling="first")


@functools.cache
def exported(task: str) -> Path:
    """The export of a model, made once; only to be read."""
    output = building.new_folder() / "exported"
    outcome = command("export", model=model_of(task), format="transformers", output=output)
    assert outcome.status == 0, outcome.err
    return output


def trained_logits(task: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The features of some rows, and the logits that the trained model gives for all of their tokens."""
    folder = model_of(task)
    trained = model_files.read(str(folder))
    model = loading.load_model(str(folder), trained).model
    features = next(iter(reader.open(data_of(task)).dataset("train", global_batch_size=16, training=False)))
    inputs = {name: features[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids")}
    ids = inputs["input_ids"]
    if task == "mlm":
        inputs["masked_positions"] = np.tile(np.arange(ids.shape[1], dtype=np.int32), (16, 1))
    return inputs, np.asarray(model(inputs, training=False))


@pytest.mark.parametrize("task", ["mlm", "classify", "tokens", "span", "clm"])
def test_a_forward_pass_from_the_paper_gives_the_logits_of_the_trained_model(task: str) -> None:
    inputs, expected = trained_logits(task)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    weights = load_file(exported(task) / "model.safetensors")
    config = json.loads((exported(task) / "config.json").read_text(encoding="utf-8"))
    if task == "clm":
        found = numpy_models.gpt2_logits(weights, config, ids)
    else:
        found = numpy_models.bert_logits(weights, config, inputs)
    counts = mask.astype(bool) if found.ndim == 3 else np.ones(len(ids), bool)  # behind a row no logits mean anything
    np.testing.assert_allclose(found[counts], expected[counts], atol=1e-4)


@pytest.mark.parametrize("task", ["mlm", "classify", "tokens", "span", "clm"])
def test_kerashub_reads_the_backbone_back(task: str) -> None:
    backbone = keras_hub.models.Backbone.from_preset(str(exported(task)))
    folder = str(model_of(task))
    trained = loading.load_model(folder, model_files.read(folder)).backbone
    given, _ = trained_logits(task)
    inputs = {"token_ids": given["input_ids"], "padding_mask": given["attention_mask"]}
    if task != "clm":
        inputs["segment_ids"] = given["token_type_ids"]
    found, expected = (each(inputs, training=False) for each in (backbone, trained))
    if task == "mlm":  # which has no pooler
        found, expected = found["sequence_output"], expected["sequence_output"]
    for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_tokenizer_cuts_texts_where_the_positions_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(exported("classify"))
    assert tokenizer.model_max_length == 16
    assert len(tokenizer("good " * 50, truncation=True)["input_ids"]) == 16


def test_the_model_card_says_what_the_model_is() -> None:
    card = (exported("classify") / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-classification\n---\n")
    assert reader.open(training.data()).manifest.fingerprint in card
    assert "| loss on validation | 0.5 |" in card
    assert "AutoModelForSequenceClassification" in card


SMALL: dict[str, Any] = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
DECODERS = {
    "Llama3Backbone": {**SMALL, "num_query_heads": 4, "num_key_value_heads": 2},
    "MistralBackbone": {**SMALL, "num_query_heads": 4, "num_key_value_heads": 2, "sliding_window": 8},
    "QwenBackbone": {**SMALL, "num_query_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "GemmaBackbone": {**SMALL, "num_query_heads": 4, "num_key_value_heads": 1, "head_dim": 4},
}


def test_an_exporter_that_leaves_out_weights_is_not_trusted(tmp_path: Path) -> None:
    # KerasHub 0.32 writes the first of Gemma's key and value heads alone.
    backbone = keras_hub.models.GemmaBackbone(**{**DECODERS["GemmaBackbone"], "num_key_value_heads": 4})
    with pytest.raises(ConfigError, match="leaves out 768 of"):
        exporting.write_decoder(backbone, model_files.read(str(finished("clm", "gpt2-tiny"))), tmp_path)


@pytest.mark.parametrize("family", DECODERS)
def test_kerashubs_decoders_come_back_with_the_same_logits(tmp_path: Path, family: str) -> None:
    keras.utils.set_random_seed(3)
    backbone = getattr(keras_hub.models, family)(**DECODERS[family])
    trained = model_files.read(str(finished("clm", "gpt2-tiny")))
    exporting.write_decoder(backbone, trained, tmp_path)
    again = keras_hub.models.Backbone.from_preset(str(tmp_path))
    ids = np.arange(12, dtype=np.int32).reshape(2, 6) + 5
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    found, expected = (each.token_embedding(each(inputs), reverse=True) for each in (again, backbone))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [exporting.DECODERS[family]]
