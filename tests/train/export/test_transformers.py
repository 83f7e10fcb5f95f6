"""Folders for `transformers`: backbones read back by KerasHub's own converter, heads by the names of `transformers`."""

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
from pipelines.train.models.checkpoint import opened
from pipelines.train.models.families import family_of
from pipelines.train.predict import loading
from tests.support.bert_exports import bert_logits, data_of, exported, model_of
from tests.train import training
from tests.train.finished import finished
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError

pytestmark = pytest.mark.slow


def trained_logits(task: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
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
def test_kerashubs_backbone_with_the_head_of_the_file_gives_the_logits_of_the_trained_model(task: str) -> None:
    features, expected = trained_logits(task)
    inputs = {"token_ids": features["input_ids"], "padding_mask": features["attention_mask"]}
    if task != "clm":
        inputs["segment_ids"] = features["token_type_ids"]
    checkpoint = opened(str(exported(task)))
    assert checkpoint is not None
    with checkpoint.whole() as folder:  # with a pooler, which KerasHub needs
        backbone = keras_hub.models.Backbone.from_preset(folder)
    weights, states = load_file(exported(task) / "model.safetensors"), backbone(inputs, training=False)
    if task == "clm":
        logits = np.asarray(backbone.token_embedding(states, reverse=True))
    else:
        logits = bert_logits(task, weights, states)
        config = json.loads((exported(task) / "config.json").read_text(encoding="utf-8"))
        assert (config["hidden_act"], config["layer_norm_eps"]) == ("gelu_new", 1e-12), "as KerasHub computes"
    mask = features["attention_mask"].astype(bool)
    counts = mask if logits.ndim == 3 else np.ones(len(mask), bool)  # behind a row no logits mean anything
    np.testing.assert_allclose(logits[counts], expected[counts], atol=1e-4)


@pytest.mark.parametrize("task", ["mlm", "classify", "tokens", "span"])
def test_only_the_class_for_rows_gets_a_pooler(task: str) -> None:
    names = load_file(exported(task) / "model.safetensors")
    assert any("pooler" in name for name in names) == (task == "classify")


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
    "GemmaBackbone": {**SMALL, "num_query_heads": 4, "num_key_value_heads": 1, "head_dim": 8},
}


def test_an_exporter_that_leaves_out_weights_is_not_trusted(tmp_path: Path) -> None:
    # KerasHub 0.32 writes the first of Gemma's key and value heads alone.
    backbone = keras_hub.models.GemmaBackbone(**{**DECODERS["GemmaBackbone"], "num_key_value_heads": 4})
    with pytest.raises(ConfigError, match="omits 1,536 of"):
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
    logits, expected = (model.token_embedding(model(inputs), reverse=True) for model in (again, backbone))
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [family_of(backbone).causal_class]
