"""Predictions of classes: every row once, in source order, equal to the model's output."""

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from pipelines.train import model_files, models
from pipelines.train.predict import loading
from tests import building
from tests.train import training
from tests.train.finished import command, done, finished, predicted
from tfrecord_io import reader

pytestmark = pytest.mark.slow

BAG = "tests.train.small:bag"


def test_every_row_is_there_once_in_source_order_with_its_label_and_what_the_model_says(tmp_path: Path) -> None:
    # 320 rows in several shards, in batches of 48: the last one is filled up.
    folder = finished("classify", BAG)
    rows = predicted(tmp_path, model=folder, data=training.data(), split="train", batch_size=48)
    assert len({row["shard"] for row in rows}) > 1
    assert [row["row"] for row in rows] == list(range(320))
    with open(building.REVIEWS / "train.jsonl", encoding="utf-8") as file:
        assert [row["label"] for row in rows] == [json.loads(line)["label"] for line in file]
    features = next(iter(reader.open(training.data()).dataset("train", global_batch_size=320, training=False)))
    model = keras.models.load_model(folder / "model.keras")
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    expected = tf.nn.softmax(model(inputs, training=False)).numpy()
    by_record = sorted(rows, key=lambda row: (row["shard"], row["record"]))
    np.testing.assert_allclose([row["probabilities"] for row in by_record], expected, atol=1e-6)
    ids = [row["prediction_id"] for row in by_record]
    assert ids == np.argmax(expected, axis=1).tolist()
    assert [row["prediction"] for row in by_record] == [("negative", "positive")[class_id] for class_id in ids]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_kept_text_is_beside_its_predictions(kind: str, tmp_path: Path) -> None:
    rows = [{"text": f"good {number}", "uid": f"é-{number}", "label": "x", "prediction": "mine"} for number in range(9)]
    place = building.source(tmp_path / "d", test=[{**row, "row": "a"} for row in rows])
    data = building.built(place, keep_column=("uid", "prediction", "row"), max_length=16)
    output = tmp_path / f"p.{kind}"
    options: dict[str, Any] = {"model": finished("classify", BAG), "data": data, "split": "test", "output": output}
    outcome = done("predict", tpu="none", json=True, **options)
    assert json.loads(outcome.out) == {"path": str(output), "rows": 9}
    predictions = (
        pq.read_table(output).to_pylist() if kind == "parquet" else [*map(json.loads, output.read_text().splitlines())]
    )
    assert [row["uid"] for row in predictions] == [row["uid"] for row in rows]
    assert [row["row"] for row in predictions] == list(range(9))
    assert {row["prediction"] for row in predictions} <= {"negative", "positive"}
    assert {(row["kept_prediction"], row["kept_row"]) for row in predictions} == {("mine", "a")}


def labelled(*labels: str) -> Path:
    rows = [{"text": "a good story", "label": label} for label in labels]
    return building.built(building.source(building.new_folder(), test=rows), label_column="label", max_length=16)


def test_the_datas_labels_are_known_by_name(tmp_path: Path) -> None:
    """In other data the same name has another id: its only class has the id 0."""
    data = labelled("positive", "positive")
    assert reader.open(data).manifest.label_names == ("positive",)
    predictions = predicted(tmp_path, model=finished("classify", BAG), data=data, split="test")
    assert {(row["label"], row["label_id"]) for row in predictions} == {("positive", 1)}


def test_a_class_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    data = labelled("positive", "unsure")
    options: dict[str, Any] = {"model": finished("classify", BAG), "data": data, "output": tmp_path / "p.jsonl"}
    outcome = command("predict", tpu="none", split="test", **options)
    assert "the model does not have the class 'unsure', only 'negative', 'positive'" in outcome.error[0]


def test_windows_of_a_row_follow_each_other(tmp_path: Path) -> None:
    data = building.reviews(max_length=16, stride=4)
    rows = predicted(tmp_path, model=finished("classify", BAG, data=data), data=data, split="validation")
    assert len(rows) > 80
    places = [(row["row"], row["window"]) for row in rows]
    assert places == sorted(places)
    assert {row for row, _ in places} == set(range(80))
    assert {window for _, window in places} > {0, 1}


def test_rows_of_several_lengths_are_in_source_order_too(tmp_path: Path) -> None:
    data = building.built(building.REVIEWS, label_column="label", max_length=24, bucket_lengths="8,24")
    model = finished("classify", "bert-tiny", data=data, layers=1)
    rows = predicted(tmp_path, model=model, data=data, split="validation", batch_size=12)
    assert [row["row"] for row in rows] == list(range(80))
    with open(building.REVIEWS / "validation.jsonl", encoding="utf-8") as file:
        labels = [json.loads(line)["label"] for line in file]
    assert [row["label"] for row in rows] == [labels[row["row"]] for row in rows]
    probabilities = {(row["shard"], row["record"]): row["probabilities"] for row in rows}
    for length in (8, 24):
        expected = _probabilities(model, data, length)
        assert expected
        in_order = [probabilities[place] for place in expected]
        np.testing.assert_allclose(in_order, list(expected.values()), atol=1e-6)


def _probabilities(folder: Path, data: Path, length: int) -> dict[tuple[int, int], np.ndarray]:
    model = loading.load_model(str(folder), model_files.read(str(folder))).model
    part = reader.open(data)
    shards = enumerate(part.manifest.splits["validation"].shards)
    places = [(index, at) for index, shard in shards if shard.length == length for at in range(shard.num_examples)]
    features = next(iter(part.bucket(length).dataset("validation", global_batch_size=len(places), training=False)))
    values = model(models.taken(model, features), training=False)
    return dict(zip(places, tf.nn.softmax(values).numpy(), strict=True))


def test_a_held_out_split_and_its_rest_are_numbered_as_in_the_source(tmp_path: Path) -> None:
    data = building.reviews(max_length=16, split=("train",), hold_out="test=25%")
    model = finished("classify", BAG)
    train, test = (predicted(tmp_path, model=model, data=data, split=split) for split in ("train", "test"))
    assert sorted(row["row"] for row in train + test) == list(range(320))
    assert [row["row"] for row in test] == sorted(row["row"] for row in test)


def test_a_split_whose_plan_is_gone_is_predicted_in_file_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(training.data(), data, ignore=shutil.ignore_patterns(".prep"))
    output = tmp_path / "p.parquet"
    options = {"model": finished("classify", BAG), "data": data, "split": "validation", "tpu": "none"}
    outcome = done("predict", output=output, **options)
    assert "the source rows are unknown" in outcome.err
    rows = pq.read_table(output).to_pylist()
    assert [row["record"] for row in rows if row["shard"] == 0] == list(range(sum(row["shard"] == 0 for row in rows)))
    assert {row["row"] for row in rows} == {None}
