"""Tasks: labels of every kind, several classes of a row, answers, and targets of an encoder with a decoder."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import get_args

import keras
import keras_hub
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats
import sklearn.metrics
import tensorflow as tf

from pipelines.train import models, setup, tasks
from pipelines.train.config import Pooling, TrainConfig
from pipelines.train.metrics import Evaluated
from pipelines.train.models import backbones, heads
from pipelines.train.models.families import FAMILIES
from pipelines.train.tasks.kinds import BoundTask
from tests import building
from tests.support.objectives import TAGS_SCHEMA
from tests.tfrecord_io.conftest import PAD_SCHEMA, make_manifest
from tests.train import training
from tests.train.finished import done
from tfrecord_io import objectives, reader
from tfrecord_io.errors import ConfigError
from tfrecord_io.reader import Data
from tfrecord_io.schema import Feature, Schema


@pytest.mark.slow
def test_correlations_are_those_of_the_models_predictions(tmp_path: Path) -> None:
    rows = [{"text": f"{'good ' * (row % 7)}film {row}", "label": row % 7 / 8} for row in range(45)]
    data = building.built(building.source(tmp_path / "in", train=rows, validation=rows), label_column="label")
    # 45 rows in batches of 32: the second is filled up with rows that must not count.
    outcome = training.done(tmp_path, data=data, model="tests.train.small:score", steps=2, global_batch_size=32)
    metrics = training.metrics(outcome.out)
    model = keras.models.load_model(tmp_path / "model.keras")
    features = next(iter(reader.open(data).dataset("validation", global_batch_size=45)))
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    predicted, labels = np.asarray(model(inputs, training=False))[:, 0], features["label"].numpy()
    assert metrics["pearson"] == pytest.approx(scipy.stats.pearsonr(predicted, labels).statistic, abs=1e-4)
    assert metrics["spearman"] == pytest.approx(scipy.stats.spearmanr(predicted, labels).statistic, abs=2e-2)
    assert metrics["mae"] == pytest.approx(np.abs(predicted - labels).mean(), abs=1e-5)


def test_a_row_without_a_label_has_no_weight() -> None:
    config = TrainConfig(data="d", task="classify", model="bert-tiny", num_labels=2)
    task = tasks.bind(config, make_manifest())
    labels, weights = tf.constant([1, -1, 0]), tf.ones([3])
    counted = task.weights(labels, weights)
    np.testing.assert_array_equal(counted, [1, 0, 1])
    sums = task.sums(tf.constant([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]), labels, counted)
    assert np.isfinite(sums["loss"].numpy())
    np.testing.assert_array_equal(sums["counts"], [[1, 1], [1, 1], [1, 1]])


def test_the_number_of_labels_is_needed_where_they_have_no_names() -> None:
    manifest, config = make_manifest(TAGS_SCHEMA), TrainConfig(data="d", task="tokens", model="bert-tiny")
    assert tasks.bind(dataclasses.replace(config, num_labels=3), manifest).num_outputs == 3
    with pytest.raises(ConfigError, match="--num-labels N"):
        tasks.bind(config, manifest)


CLASSES = 3
MULTI_HOT = Schema(
    tuple(
        Feature(name="label", dtype="int64", shape=(CLASSES,), role="label") if feature.role == "label" else feature
        for feature in PAD_SCHEMA.features
    )
)


def bound(*, label_smoothing: float = 0.0) -> tasks.BoundTask:
    config = TrainConfig(data="d", task="classify", model="bert-tiny", label_smoothing=label_smoothing)
    return tasks.bind(config, make_manifest(MULTI_HOT))


@pytest.mark.parametrize("seed", range(3))
def test_the_metrics_are_those_of_scikit_learn_and_rows_of_weight_0_do_not_count(seed: int) -> None:
    draws = np.random.default_rng(seed)
    labels = (draws.random((40, CLASSES)) < (0.6, 0.2, 0)).astype(np.int32)
    logits = draws.normal(size=(40, CLASSES)).astype(np.float32) - (0, 0, 9)
    logits[30:] = np.nan  # as rows without a token may have
    weights = np.repeat(np.array([1, 0], np.float32), [30, 10])
    task = bound()
    sums = task.sums(tf.constant(logits), tf.constant(labels), tf.constant(weights))
    in_float64 = {name: values.numpy().astype(float) for name, values in sums.items()}
    metrics = task.metrics(Evaluated(sums=in_float64, rows={}))
    actual, predicted = labels[:30], logits[:30] > 0
    for average in ("micro", "macro"):
        expected = sklearn.metrics.f1_score(actual, predicted, average=average, zero_division=0.0)
        assert metrics[f"{average}_f1"] == pytest.approx(expected)
    exact = sklearn.metrics.log_loss(actual.ravel(), 1 / (1 + np.exp(-logits[:30].astype(float).ravel())))
    assert metrics["loss"] == pytest.approx(exact, rel=1e-5)


def test_smoothing_moves_targets_towards_a_half() -> None:
    logits, labels = tf.constant([[2.0, -1.0, 0.5]]), tf.constant([[1, 0, 1]])
    expected = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.constant([[0.9, 0.1, 0.9]]), logits=logits)
    smoothed = bound(label_smoothing=0.2).losses(logits, labels, smoothing=True)
    np.testing.assert_allclose(smoothed, tf.reduce_mean(expected, axis=1), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("one_layer")
def test_a_model_learns_several_classes_predicts_lists_and_is_exported(tmp_path: Path) -> None:
    words = {"good": "praise", "bad": "blame", "long": "length"}
    chosen = [[word for bit, word in enumerate(words) if row >> bit & 1] for row in range(160)]
    rows = [{"text": " ".join(row) or "film", "about": [words[word] for word in row]} for row in chosen]
    source = building.source(tmp_path / "in", train=rows, validation=rows[:45])
    data, model = building.built(source, label_column="about", max_length=8), tmp_path / "model"
    options = {"data": data, "model": "bert-tiny", "pooling": "first", "log_every": 20, "global_batch_size": 32}
    outcome = training.done(model, **options, steps=60, learning_rate=0.003)
    metrics = training.metrics(outcome.out)
    assert metrics["micro_f1"] > 0.75
    done("predict", model=model, data=data, split="validation", output=tmp_path / "p.parquet", tpu="none")
    table = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["label"] for row in table] == [sorted(row["about"]) for row in rows[:45]]
    names = sorted(words.values())
    of_row = [[name for name, p in zip(names, row["probabilities"], strict=True) if p > 0.5] for row in table]
    assert [row["prediction"] for row in table] == of_row
    actual, guessed = ([[name in row[column] for name in names] for row in table] for column in ("label", "prediction"))
    again = sklearn.metrics.f1_score(np.array(actual), np.array(guessed), average="macro", zero_division=0.0)
    assert metrics["macro_f1"] == pytest.approx(again, abs=1e-6)
    done("export", model=model, output=tmp_path / "hf", format="transformers")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == names


@pytest.fixture(scope="module")
def data() -> Data:
    return reader.open(training.questions())


@pytest.fixture(scope="module")
def task(data: Data) -> BoundTask:
    return tasks.bind(TrainConfig(data=data.root, task="span", model="bert-tiny"), data.manifest)


@pytest.mark.slow
def test_neither_question_nor_padding_can_be_an_answer(data: Data, task: BoundTask) -> None:
    inputs, labels, _ = next(iter(data.dataset("train", global_batch_size=16, objective=task.objective)))
    logits = task.aligned(tf.zeros([16, data.manifest.row_length, 2]), (inputs, None, None), taken=inputs).numpy()
    features = next(iter(data.dataset("train", global_batch_size=16)))
    text = (features["char_ends"] > features["char_starts"]).numpy()
    text[:, 0] = True
    np.testing.assert_array_equal(logits[..., 0] == 0, text)
    for row, (first, last) in enumerate(labels.numpy()):
        assert text[row, first], "what is right is never masked"
        assert text[row, last]
    losses = task.losses(tf.constant(logits), labels, smoothing=False).numpy()
    np.testing.assert_allclose(losses, np.log(text.sum(axis=1)), rtol=1e-5)


def test_the_loss_is_the_mean_of_both_ends(task: BoundTask) -> None:
    draws = np.random.default_rng(0)
    logits, labels = draws.normal(size=(3, 9, 2)).astype(np.float32), draws.integers(0, 9, (3, 2))
    shares = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = [-(shares[row, first, 0] + shares[row, last, 1]) / 2 for row, (first, last) in enumerate(labels)]
    losses = task.losses(tf.constant(logits), tf.constant(labels, tf.int32), smoothing=False)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_positions_are_not_smoothed(data: Data) -> None:
    config = TrainConfig(data=data.root, task="span", model="bert-tiny", label_smoothing=0.1)
    with pytest.raises(ConfigError, match="expected labels that are classes"):
        tasks.bind(config, data.manifest)


@pytest.mark.slow
@pytest.mark.usefixtures("one_layer")
def test_a_decoder_does_not_see_what_it_is_to_predict() -> None:
    data = reader.open(training.translations())
    config = TrainConfig(data=data.root, task="seq2seq", model="t5-tiny", dropout=0.0)
    task = tasks.bind(config, data.manifest)
    model = models.build(config, data.manifest, task).model
    inputs, _, _ = next(iter(data.dataset("train", global_batch_size=2, objective=task.objective)))
    ids = inputs[objectives.DECODER_INPUTS].numpy()
    ids[:, 5] += 1
    changed = {**inputs, objectives.DECODER_INPUTS: tf.constant(ids)}
    before, after = (np.asarray(model(features, training=False)) for features in (inputs, changed))
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-5)
    assert np.abs(before[:, 5] - after[:, 5]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted({family.backbone for family in FAMILIES.values()} - {"T5Backbone", "BartBackbone"})
)
def test_every_encoder_and_decoder_classifies_with_every_pooling(name: str, tmp_path: Path) -> None:
    job = setup.check(
        TrainConfig(data=str(training.data()), model_dir=str(tmp_path), model="bert-tiny", task="classify", tpu="none")
    )
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "max_sequence_length": 128}
    sizes |= {"num_query_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "embedding_dim": 8}
    cls = getattr(keras_hub.models, name)
    known = {word: size for word, size in sizes.items() if word in inspect.signature(cls).parameters}
    backbone = cls(vocabulary_size=job.data.manifest.tokenizer.vocab_size, **known)
    for pooling in get_args(Pooling):
        if pooling != "auto":
            model = heads.with_head(backbone, job.data.manifest, job.task, pooling=pooling)
            assert model.output.shape == (None, 2)


@pytest.mark.slow
def test_a_tied_t5_divides_its_states_as_transformers_does() -> None:
    sizes = {"vocabulary_size": 9, "num_layers": 1, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    tied, untied = (keras_hub.models.T5Backbone(**sizes, tie_embedding_weights=is_tied) for is_tied in (True, False))
    bart = keras_hub.models.BartBackbone(**sizes)
    scales = [backbones.scales_tied_logits(backbone) for backbone in (tied, untied, bart)]
    assert scales == [True, False, False]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model", "words"),
    [
        ("seq2seq", "bert-tiny", "the model is an encoder, which sees later tokens"),
        ("clm", "t5-tiny", "the model is an encoder and a decoder"),
        ("tokens", "tests.train.small:everywhere", "shape [B, 64, 2000], expected logits [B, L, 7] for --task tokens"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path: Path, task: str, model: str, words: str) -> None:
    data = training.tags() if task == "tokens" else training.translations()
    outcome = training.command(tmp_path, data=data, task=task, model=model)
    assert words in outcome.error[0]
