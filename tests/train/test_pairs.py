"""Training on pairs of answers: the losses of DPO and of reward models, the reference, and rewards as predictions."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import scipy.special

from pipelines.train import device_backend, models, setup, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.metrics import Evaluated
from pipelines.train.models import backbones
from pipelines.train.targets import Target
from pipelines.train.tasks import pairs
from tests import building
from tests.train import small, training
from tests.train.finished import predicted
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError

SMALL = "tests.train.small"
PAIRS: dict[str, dict[str, Any]] = {
    "dpo": {"model": f"{SMALL}:next_tokens", "reference": f"{SMALL}:shifted"},
    "reward": {"model": f"{SMALL}:answer"},
}


def bound(task: str, **options: Any) -> tasks.BoundTask:
    config = TrainConfig(data="d", task=task, model="gpt2-tiny", **options)  # type: ignore[arg-type]
    return tasks.bind(config, reader.open(str(training.pairs())).manifest)


@pytest.mark.parametrize("smoothing", [False, True])
def test_the_losses_are_those_of_the_formulas(smoothing: bool) -> None:
    draws = np.random.default_rng(0)
    scores, margins = draws.normal(size=(6, 2)).astype(np.float32), draws.random(6).astype(np.float32)
    share = 0.2 * smoothing
    for task, beta, labels in (("dpo", 0.3, {}), ("reward", 1.0, {"margin": margins}), ("reward", 1.0, {})):
        losses = bound(task, beta=0.3, label_smoothing=0.2).losses(scores, labels, smoothing=smoothing)
        gain = beta * (scores[:, 0] - scores[:, 1]) - (margins if labels else 0)
        expected = (share - 1) * scipy.special.log_expit(gain) - share * scipy.special.log_expit(-gain)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_an_answer_scores_the_sum_of_the_log_probabilities_of_its_tokens() -> None:
    draws = np.random.default_rng(1)
    labels, weights = ({side: draws.integers(0, n, (3, 4)) for side in ("chosen", "rejected")} for n in (9, 2))
    logits = draws.normal(size=(3, 2, 4, 9)).astype(np.float32)
    scores = pairs.scores(logits.reshape(6, 4, 9), labels, weights)
    for at, side in enumerate(("chosen", "rejected")):
        logs = np.take_along_axis(scipy.special.log_softmax(logits[:, at], axis=-1), labels[side][..., None], axis=-1)
        np.testing.assert_allclose(scores[:, at], (logs[..., 0] * weights[side]).sum(axis=1), rtol=1e-5)


def test_metrics_are_means_over_pairs_and_fill_rows_do_not_count() -> None:
    scores = np.array([[2, 1], [0, 3], [np.nan, np.nan]], np.float32)
    task = bound("dpo", beta=0.5)
    answers = np.array([[0, 1], [0, 1], [0, 0]], np.float32)
    weights = task.weights({}, {"chosen": answers, "rejected": answers})
    sums = {name: np.asarray(values, np.float64) for name, values in task.sums(scores, {}, weights).items()}
    metrics = task.metrics(Evaluated(sums=sums, rows={}))
    assert list(metrics) == list(task.metric_names)
    del metrics["loss"]
    assert metrics == {"accuracy": 0.5, "chosen_reward": 0.5, "rejected_reward": 1, "margin": -0.5}


@pytest.mark.parametrize("task", PAIRS)
@pytest.mark.slow
def test_a_training_resumes_and_predicts_rewards(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"data": training.pairs(), "task": task, "global_batch_size": 8, "schedule": "constant", **PAIRS[task]}
    whole = training.losses(training.done(tmp_path / "whole", **options, steps=6).out)
    first = training.losses(training.done(tmp_path / "parts", **options, steps=3).out)
    monkeypatch.setattr(small, "shift", 9.0)  # the checkpoint has the reference, whatever its function makes now
    outcome = training.done(tmp_path / "parts", **options, steps=6)
    assert {**first, **training.losses(outcome.out)} == whole
    assert whole[6] < whole[1]
    measured = training.metrics(outcome.out)
    build = PAIRS[task]["model"]
    rows = predicted(tmp_path, model=tmp_path / "parts", data=training.pairs(), split="validation", build=build)
    assert [row["row"] for row in rows] == list(range(10))
    for side in ("chosen", "rejected"):
        mean = np.mean([row[f"{side}_reward"] for row in rows])
        assert measured[f"{side}_reward"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"task": "clm", "reference": "gpt2-tiny", "data": "reviews"}, "expected --task dpo", "leave --reference out"),
        ({"task": "dpo", "reference": "gpt2-mini"}, "differs from --model gpt2-tiny in ", "state of the same model"),
        *(
            ({"task": task, "model": "bert-tiny"}, "an encoder, which sees later tokens", "choose gpt2-tiny")
            for task in PAIRS
        ),
        ({"task": "dpo", "data": "reviews"}, "--task dpo: ", "this dataset supports --task classify, mlm, clm"),
        ({"task": "clm"}, "--task clm: ", "this dataset supports --task dpo, reward"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, str], message: str, remedy: str) -> None:
    data = training.data() if changes.get("data") else training.pairs()
    options: dict[str, Any] = {"model": "gpt2-tiny", **changes, "data": str(data)}
    with pytest.raises(ConfigError) as caught:
        device_backend.built(setup.prepared(TrainConfig(**options), Target(kind="host", chosen_by="--tpu none")))
    assert message in caught.value.cause
    assert remedy in caught.value.remedy


def test_a_margin_is_a_number(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "chosen": " b", "rejected": " c", "margin": "much"}]
    options = {"layout": "preference", "keep_column": "margin", "tokenizer": building.tokenizer("chats")}
    data = building.built(building.source(tmp_path, train=rows), **options, max_length=16)
    config = TrainConfig(data=str(data), task="reward", model="gpt2-tiny")
    with pytest.raises(ConfigError, match="feature 'margin' is string"):
        tasks.bind(config, reader.open(str(data)).manifest)


def test_the_reference_is_a_copy_of_the_weights(one_layer: None) -> None:
    config = TrainConfig(data=str(training.pairs()), task="dpo", model="gpt2-tiny")
    manifest = reader.open(config.data_folders[0]).manifest
    task = tasks.bind(config, manifest)
    built = models.build(config, manifest, task)
    frozen = models.reference_of(config, manifest, task, built)
    first = frozen[0].copy()
    built.model.trainable_variables[0].assign(np.zeros_like(first))
    np.testing.assert_array_equal(frozen[0], first)
    assert [one.shape for one in frozen] == [tuple(one.shape) for one in built.model.trainable_variables]


def test_a_reward_model_begins_with_the_head_of_its_checkpoint(tmp_path: Path) -> None:
    """As GPT2ForSequenceClassification saves it: `score`, without a bias."""
    from safetensors.numpy import load_file, save_file

    backbone = backbones.keras_hub("").models.GPT2Backbone(
        vocabulary_size=600, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=32, max_sequence_length=32
    )
    backbone.export_to_transformers(str(tmp_path))
    weights = load_file(tmp_path / "model.safetensors")
    weights["score.weight"] = np.arange(8, dtype=np.float32)[None]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {"activation_function": "gelu_new", "architectures": ["GPT2ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = TrainConfig(data=str(training.pairs()), task="reward", model=str(tmp_path))
    manifest = reader.open(config.data_folders[0]).manifest
    built = models.build(config, manifest, tasks.bind(config, manifest))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(built.model.get_layer("logits").kernel)[:, 0], np.arange(8)
    )
