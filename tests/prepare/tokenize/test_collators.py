"""What a trainer would get from the collators of `transformers` is what our records hold, feature by feature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithFlattening,
)

from pipelines.prepare.audit.decode import load_tokenizer
from tests import building
from tests.building import REPOSITORY, built, read_rows
from tfrecord_io import objectives, reader

EXAMPLES = REPOSITORY / "examples"
LENGTH = 32
NONE = -100  # of these collators: no label here

Columns = dict[str, np.ndarray]


def texts(example: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLES / example / "train.jsonl").read_text(encoding="utf-8").splitlines()]


def made(example: str, **changes: object) -> tuple[Columns, Any, Path]:
    """The records of an example in the source's order, its tokenizer, and where they are."""
    root = built(EXAMPLES / example, max_length=LENGTH, no_shuffle=True, split="train", **changes)
    return read_rows(root, "train"), load_tokenizer(str(root)), root


@pytest.mark.parametrize("every_token", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tags_are_those_of_the_token_classification_collator(every_token: bool) -> None:
    rows, tokenizer, root = made("tags", layout="tokens", label_all_tokens=every_token or None)
    names = building.read_manifest(root).label_names
    assert names is not None
    encoded = []
    for row in texts("tags"):
        one = tokenizer(row["tokens"], is_split_into_words=True, truncation=True, max_length=LENGTH)
        words = one.word_ids()
        first = [word is not None and (every_token or word != before) for word, before in zip(words, [None, *words])]  # noqa: B905
        labels = [names.index(row["tags"][word]) if takes else NONE for word, takes in zip(words, first, strict=True)]
        encoded.append({**one, "labels": labels})
    collate = DataCollatorForTokenClassification(
        tokenizer, padding="max_length", max_length=LENGTH, label_pad_token_id=NONE, return_tensors="np"
    )
    expected = collate(encoded)
    np.testing.assert_array_equal(rows["input_ids"], expected["input_ids"])
    np.testing.assert_array_equal(np.where(rows["tag_mask"] == 1, rows["tags"], NONE), expected["labels"])


@pytest.mark.slow
def test_targets_are_those_of_the_seq2seq_collator() -> None:
    rows, tokenizer, _ = made(
        "translations",
        layout="seq2seq",
        text_column="en",
        target_column="de",
        tokenizer=building.tokenizer("translations"),
    )
    encoded = [
        {
            **tokenizer(row["en"], truncation=True, max_length=LENGTH),
            "labels": tokenizer(text_target=row["de"], truncation=True, max_length=LENGTH)["input_ids"],
        }
        for row in texts("translations")
    ]
    collate = DataCollatorForSeq2Seq(
        tokenizer, padding="max_length", max_length=LENGTH, label_pad_token_id=NONE, return_tensors="np"
    )
    expected = collate(encoded)
    np.testing.assert_array_equal(rows["input_ids"], expected["input_ids"])
    np.testing.assert_array_equal(rows["attention_mask"], expected["attention_mask"])
    np.testing.assert_array_equal(np.where(rows["target_mask"] == 1, rows["target_ids"], NONE), expected["labels"])


@pytest.mark.slow
def test_packed_rows_are_those_of_the_flattening_collator() -> None:
    """It puts documents one after the other; ours does so in rows of one length, and pads."""
    rows, _, root = made("reviews", layout="pack")
    batch = next(iter(reader.open(root).dataset("train", global_batch_size=16, training=False)))
    inputs, labels, weights = objectives.causal_lm().bind(building.read_manifest(root))(
        batch, seed=tf.constant([0, 0], tf.int64)
    )
    for index in range(16):
        ids, segments = rows["input_ids"][index], rows["segment_ids"][index]
        documents = [ids[segments == segment].tolist() for segment in range(1, segments.max() + 1)]
        expected = DataCollatorWithFlattening(return_tensors="np")([{"input_ids": each} for each in documents])
        used = int((segments > 0).sum())
        np.testing.assert_array_equal(ids[:used], expected["input_ids"][0])
        np.testing.assert_array_equal(rows["positions"][index][:used], expected["position_ids"][0])
        # A label there is the token itself; here it is the next one, and none goes from a document to the next.
        learned = np.where(weights[index].numpy() == 1, labels[index].numpy(), NONE)
        np.testing.assert_array_equal(learned[: used - 1], expected["labels"][0][1:])
        assert (learned[used - 1 :] == NONE).all()
    assert set(inputs) >= {"input_ids", "segment_ids", "positions"}
