"""Whole training runs on one replica: calls of several steps, saved files, resuming, mixtures."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from pipelines.train import model_files, setup
from pipelines.train.config import TrainConfig
from pipelines.train.preflight import preflight, tpu_slices
from pipelines.train.preflight.preflight import Preflight
from tests import building
from tests.building import Outcome
from tests.train import training
from tfrecord_io import reader
from tfrecord_io.mixture import Mixture

pytestmark = pytest.mark.slow

SHORT = {"global_batch_size": 48, "steps": 2, "eval_every": 1}


def test_steps_in_one_call_are_the_same_steps(tmp_path: Path) -> None:
    single, four = (training.command(tmp_path / str(count), steps_per_call=count, log_every=4) for count in (1, 4))
    assert training.losses(single.out) == pytest.approx(training.losses(four.out), rel=1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """The folder of a training run of two steps (read-only), and its output."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, training.done(folder, **SHORT)


def test_an_evaluation_counts_every_example_once(trained: tuple[Path, Outcome]) -> None:
    # 80 examples in batches of 48: the second batch is filled up with rows that must not count.
    metrics, model = training.metrics(trained[1].out), keras.models.load_model(trained[0] / "model.keras")
    batches = reader.open(training.data()).dataset("validation", global_batch_size=80)
    features = next(iter(batches))
    logits = model({name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}, training=False)
    hits = np.argmax(logits, axis=1) == features["label"].numpy()
    losses = keras.losses.sparse_categorical_crossentropy(features["label"], logits, from_logits=True)
    assert metrics["examples"] == 80
    assert metrics["accuracy"] == pytest.approx(hits.mean(), abs=1e-6)
    # This model divides by the number of tokens, and fill rows have none.
    assert metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_finished_training_describes_its_model_with_weights_and_scalars(trained: tuple[Path, Outcome]) -> None:
    folder, outcome = trained
    assert (folder / "model.weights.h5").stat().st_size > 1000
    [events] = (folder / "logs").iterdir()
    assert all(tag in events.read_bytes() for tag in (b"train/loss", b"train/steps_per_s", b"validation/accuracy"))
    description, manifest = model_files.read(str(folder)), reader.open(training.data()).manifest
    assert (description.task, description.model, description.steps) == ("classify", "tests.train.small:bag", 2)
    assert description.eval_split == "validation"
    assert description.metrics["accuracy"] == training.metrics(outcome.out)["accuracy"]
    assert description.label_names == ("negative", "positive")
    assert description.manifest.fingerprint == manifest.fingerprint
    assert description.manifest.tokenizer == manifest.tokenizer
    assert not description.manifest.splits
    assert building.files(folder / "tokenizer") == building.files(training.data() / "tokenizer")


# There is no TPU here: whoever got as far as looking for one would say so.
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1, "tpu": "local"}, "seed 0, now 1"),
        ({"global_batch_size": 32}, "global_batch_size 48, now 32"),
        ({"model": "tests.train.small:normed"}, "model 'tests.train.small:bag'"),
        ({"learning_rate": 0.1}, "learning_rate 0.01, now 0.1"),
        ({"dropout": 0.3, "precision": "bfloat16"}, "dropout 0.1, now 0.3, precision 'float32', now 'bfloat16'"),
        ({"allow_changes": True, "seed": 1, "learning_rate": 0.1}, "learning_rate 0.01, now 0.1, seed 0, now 1"),
    ],
)
def test_other_trainings_are_refused(trained: tuple[Path, Outcome], change: dict[str, object], words: str) -> None:
    outcome = training.command(trained[0], **{**SHORT, "steps": 4, **change})
    assert outcome.status == 1
    assert words in outcome.error[0]


def test_a_finished_training_says_that_nothing_is_left(trained: tuple[Path, Outcome], tmp_path: Path) -> None:
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    again = training.command(tmp_path, **SHORT)
    assert again.status == 0
    assert "nothing left to train after 2 steps, since --steps is 2" in again.err


def damage(checkpoint: Path) -> None:
    for path in [file for file in checkpoint.parent.rglob("*") if file.is_file()]:
        if checkpoint.name in str(path) and path.suffix != ".index":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path: Path) -> None:
    whole = training.losses(training.done(tmp_path, steps=4, save_every=1, keep_checkpoints=3).out)
    assert sorted(path.stem for path in (tmp_path / "checkpoints").glob("*.index")) == ["ckpt-2", "ckpt-3", "ckpt-4"]
    damage(tmp_path / "checkpoints" / "ckpt-4")
    for path in (tmp_path / "checkpoints").glob("ckpt-3.*"):
        path.unlink()
    again = training.done(tmp_path, steps=4, save_every=3)
    assert f"warning: {tmp_path}/checkpoints/ckpt-4: the checkpoint does not fit this model or is damaged" in again.err
    assert "continuing after step 2\n" in again.err
    assert training.losses(again.out) == {step: whole[step] for step in (3, 4)}, "to the last bit"
    for step in (2, 3, 4):
        damage(tmp_path / "checkpoints" / f"ckpt-{step}")
    outcome = training.command(tmp_path, steps=5)
    assert outcome.status == 1
    assert "ckpt-2: the checkpoint does not fit this model or is damaged" in outcome.error[0]


def test_a_damaged_best_checkpoint_costs_only_itself(trained: tuple[Path, Outcome], tmp_path: Path) -> None:
    options = {**SHORT, "steps": 3, "keep_best": True, "learning_rate": 1e-9, "best_metric": "accuracy"}
    training.done(tmp_path, **{**options, "steps": 2})  # the first of equals is the best
    damage(tmp_path / "best" / "ckpt-1")
    outcome = training.done(tmp_path, **options)
    assert "the checkpoint of the best evaluation (step 1) cannot be loaded, so the last one is used" in outcome.err
    model = keras.models.load_model(tmp_path / "model.keras")
    assert all(np.isfinite(weights).all() for weights in model.get_weights())


def test_a_training_in_bfloat16_with_smoothed_labels(tmp_path: Path) -> None:
    outcome = training.done(tmp_path, precision="bfloat16", label_smoothing=0.1, steps=2)
    assert len(training.losses(outcome.out)) == 2


# Of 2,000 entries: 7.6 for knowing nothing, and about 6.6 for knowing how frequent each is; five seeds gave 6.1 to 6.3.
# A few translations and tags are learned by heart.
@pytest.mark.parametrize(
    ("task", "model", "options", "bound"),
    [
        ("mlm", "bert-tiny", {"steps": 40, "learning_rate": 3e-3}, 7.3),
        ("seq2seq", "t5-tiny", {"steps": 40, "learning_rate": 5e-3, "dropout": 0.0}, 1.0),
        ("tokens", "bert-tiny", {"steps": 15, "learning_rate": 3e-3}, 1.0),
    ],
)
@pytest.mark.usefixtures("one_layer")
def test_tokens_are_learned(tmp_path: Path, task: str, model: str, options: dict[str, object], bound: float) -> None:
    if task == "seq2seq":
        options = {**options, "data": training.translations(), "global_batch_size": 24}
    elif task == "tokens":
        options = {**options, "data": training.tags()}
    outcome = training.done(tmp_path, task=task, model=model, log_every=10, eval_split="train", **options)
    metrics = training.metrics(outcome.out)
    assert metrics["loss"] < bound
    if task != "tokens":
        assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))


def other() -> Path:
    return building.reviews(max_length=16, limit=40, name="few")


def test_a_training_on_two_datasets_evaluates_each_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    options = {"data": (training.data(), other()), "weights": "3,1"}
    first = training.done(tmp_path / "model", steps=4, **options)
    evaluated = [line for line in map(json.loads, first.out.splitlines()) if "split" in line]
    name = building.read_manifest(training.data()).name
    assert [line["split"] for line in evaluated] == [f"{name}/validation", "few/validation", "validation"]
    assert evaluated[2]["examples"] == evaluated[0]["examples"] + evaluated[1]["examples"]

    resumed = training.command(tmp_path / "model", steps=8, **options)
    line = (
        "the cosine schedule is rescaled from 4 steps with a warm-up of 0 to 8 with a warm-up of 0; the next learning "
        "rate is 0.005 instead of"
    )
    assert line in resumed.err
    assert "rescaled" not in training.command(tmp_path / "model", steps=8, **options).err
    assert list(training.losses(resumed.out)) == [5, 6, 7, 8]
    refused = training.command(tmp_path / "model", steps=9, **{**options, "weights": "1,1"})
    assert "contains another training run" in refused.error[0]


def test_weights_that_change_continue_bit_for_bit_and_may_change_later_on(tmp_path: Path) -> None:
    options = {"data": (training.data(), other()), "weights": "3,1", "schedule": "constant"}
    stages = ("3:1,1", "6:0,1")
    whole = training.losses(training.done(tmp_path / "whole", steps=8, weights_from=stages, **options).out)
    training.done(tmp_path / "model", steps=4, weights_from=("3:1,1", "5:1,0"), **options)
    resumed = training.done(tmp_path / "model", steps=8, weights_from=stages, **options)
    assert training.losses(resumed.out) == {step: whole[step] for step in (5, 6, 7, 8)}
    refused = training.command(tmp_path / "model", steps=9, weights_from=("3:1,2", "6:0,1"), **options)
    assert "weights from steps {'3': [1.0, 1.0]" in refused.error[0]


def test_a_preflight_shows_rows_tokens_and_epochs_of_each_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(
        data=(str(training.data()), str(other())), task="classify", model="tests.train.small:bag", global_batch_size=16,
        steps=8, weights="3,1", weights_from=("3:1,1", "6:0,1"),
    )  # fmt: skip
    wanted = tpu_slices.parse("v3-8")
    shares = setup.shares(preflight.checked(config, wanted))
    expected = {}
    for folder, rows in zip(config.data_folders, (36 + 24, 12 + 24 + 32), strict=True):
        split = building.read_manifest(Path(folder)).splits["train"]
        tokens, epochs = round(rows * split.num_tokens / split.num_examples), rows / split.num_examples
        expected[building.read_manifest(Path(folder)).name] = {"rows": rows, "tokens": tokens, "epochs": epochs}
    assert shares == expected
    result = Preflight(slice=wanted, config=config, row_length=16, batch=2, shares=shares, step="no fit", bounds=None)
    preflight.report(result, as_programs=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["datasets"] == expected
    few = expected["few"]
    assert f"68 rows, {few['tokens']:,} tokens, {few['epochs']:.2f} epochs" in " ".join(printed.err.split())


def test_datasets_of_one_name_are_told_apart() -> None:
    folders = (str(training.data()),) * 2
    mixture = setup.open_data(TrainConfig(data=folders, task="classify", model="bert-tiny", weights="3,1"))
    assert isinstance(mixture, Mixture)
    first, second = mixture.datasets
    assert second == f"{first}-2"
    assert mixture.rates("train") == {first: 0.75, second: 0.25}
