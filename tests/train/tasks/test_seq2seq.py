"""The task `seq2seq`: targets, token by token, from an encoder with a decoder."""

from __future__ import annotations

from pathlib import Path

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from pipelines.train import models, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.models import backbones
from tests.train import training
from tfrecord_io import objectives, reader


@pytest.mark.slow
@pytest.mark.parametrize("model", ["t5-tiny", "bart-tiny"])
def test_a_few_translations_are_learned_by_heart(tmp_path: Path, model: str) -> None:
    outcome = training.command(
        tmp_path,
        data=training.translations(),
        task="seq2seq",
        model=model,
        eval_split="train",
        steps=60,
        global_batch_size=24,
        learning_rate=5e-3,
        dropout=0.0,
        log_every=30,
    )
    assert outcome.status == 0, outcome.err
    found = training.metrics(outcome.out)
    assert found["accuracy"] > 0.5, "of 500 entries"
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))


@pytest.mark.slow
def test_a_decoder_does_not_see_what_it_is_to_predict() -> None:
    data = reader.open(training.translations())
    config = TrainConfig(data=data.root, task="seq2seq", model="t5-tiny", dropout=0.0)
    task = tasks.bind(config, data.manifest)
    model = models.build(config, data.manifest, task).model
    inputs, _, _ = next(iter(data.dataset("train", global_batch_size=2, objective=task.objective)))
    ids = inputs[objectives.DECODER_INPUTS].numpy()
    ids[:, 5] += 1
    changed = {**inputs, objectives.DECODER_INPUTS: tf.constant(ids)}
    before, after = (np.asarray(model(each, training=False)) for each in (inputs, changed))
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert np.abs(before[:, 5] - after[:, 5]).max() > 1e-3


def test_a_tied_t5_divides_its_states_as_transformers_does() -> None:
    sizes = {"vocabulary_size": 9, "num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    tied, untied = (keras_hub.models.T5Backbone(**sizes, tie_embedding_weights=each) for each in (True, False))
    bart = keras_hub.models.BartBackbone(**sizes)
    scales = [backbones.scales_tied_logits(each) for each in (tied, untied, bart)]
    assert scales == [True, False, False]


@pytest.mark.parametrize(
    ("model", "start", "token"), [("t5-tiny", "auto", "pad"), ("bart-tiny", "auto", "eos"), ("t5-tiny", "eos", "eos")]
)
def test_a_target_begins_with_the_token_of_its_model(model: str, start: str, token: str) -> None:
    data = reader.open(training.translations())
    config = TrainConfig(data=data.root, task="seq2seq", model=model, decoder_start=start)  # type: ignore[arg-type]
    objective = tasks.bind(config, data.manifest).objective
    inputs, _, _ = next(iter(data.dataset("train", global_batch_size=2, objective=objective)))
    expected = getattr(data.manifest.tokenizer, f"{token}_id")
    assert set(inputs[objectives.DECODER_INPUTS][:, 0].numpy()) == {expected}


@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        ("seq2seq", "bert-tiny", "it is no encoder with a decoder"),
        ("clm", "t5-tiny", "it is an encoder with a decoder"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path: Path, task: str, model: str, words: str) -> None:
    outcome = training.command(tmp_path, data=training.translations(), task=task, model=model)
    assert words in outcome.error[0]
