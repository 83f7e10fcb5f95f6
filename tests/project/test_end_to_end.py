"""From rows of text to shards and back, judged by what `transformers` and TensorFlow make of the same rows."""

import collections
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import building
from tests.building import REVIEWS, built, read_manifest, read_rows, reviews
from tests.support.tokenizers_zoo import Zoo

LENGTH = 32
TOKEN_FEATURES = ("input_ids", "attention_mask", "token_type_ids")
SPLITS = ("train", "validation")


def source_rows(split: str) -> list[dict[str, str]]:
    with (REVIEWS / f"{split}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def expected_reviews(split: str) -> dict[str, np.ndarray]:
    rows = source_rows(split)
    tokenizer = load_tokenizer(building.tokenizer())
    texts = [row["text"] for row in rows]
    encoded = tokenizer(texts, truncation=True, max_length=LENGTH, padding="max_length", return_tensors="np")
    labels = np.array([row["label"] == "positive" for row in rows], np.int64)
    return {**{name: np.asarray(values) for name, values in encoded.items()}, "label": labels}


def as_rows(columns: dict[str, np.ndarray], names: Iterable[str]) -> list[bytes]:
    arrays = [np.ascontiguousarray(columns[name], dtype=np.float64) for name in names]
    return [b"".join(array[index].tobytes() for array in arrays) for index in range(len(arrays[0]))]


def assert_same_rows(rows: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(rows[name], values, err_msg=name)


@pytest.mark.parametrize("split", SPLITS)
def test_every_row_of_the_source_is_there_exactly_once(split: str) -> None:
    names = (*TOKEN_FEATURES, "label")
    written, expected = (as_rows(rows, names) for rows in (read_rows(reviews(), split), expected_reviews(split)))
    assert collections.Counter(written) == collections.Counter(expected)
    assert written != expected, "the seed permutes the rows"


@pytest.mark.parametrize("split", SPLITS)
def test_without_shuffling_rows_keep_the_order_of_the_source_across_shards(split: str) -> None:
    root = reviews(no_shuffle=True)
    assert len(read_manifest(root).splits[split].shards) > 1 or split == "validation"
    assert read_manifest(root).label_names == ("negative", "positive")
    assert_same_rows(read_rows(root, split), expected_reviews(split))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_tensorflow_parses_the_shards_by_the_manifest_alone(compression: str) -> None:
    import tensorflow as tf

    root = reviews(compression=compression, no_shuffle=True)
    facts = read_manifest(root)
    dtypes = {"int64": tf.int64, "float32": tf.float32}
    spec = {item.name: tf.io.FixedLenFeature(item.shape, dtypes[item.dtype]) for item in facts.schema.features}
    paths = [str(root / shard.name) for shard in facts.splits["train"].shards]
    records = tf.data.TFRecordDataset(paths, compression_type="GZIP" if compression == "gzip" else "")
    (parsed,) = records.batch(1000).map(lambda batch: tf.io.parse_example(batch, spec)).as_numpy_iterator()
    assert_same_rows(parsed, expected_reviews("train"))


@pytest.mark.slow
def test_a_dataset_without_labels_and_special_tokens_may_consist_of_empty_texts(tmp_path: Path, zoo: Zoo) -> None:
    data = building.source(tmp_path / "data", train=[{"text": ""}] * 5)
    root = built(data, tokenizer=zoo.path("byte_bpe"))
    rows = read_rows(root, "train")
    assert len(rows["input_ids"]) == 5
    assert not rows["attention_mask"].any()
    assert building.command("verify", root).status == 0
    plan = building.command("plan", data, "--tokenizer", zoo.path("byte_bpe"), "--json")
    assert plan.status == 0, plan.err
    assert json.loads(plan.out)[0]["num_tokens"] == 0
