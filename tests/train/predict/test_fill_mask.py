"""Candidates for masked words."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.train.finished import command, done, finished

MODEL = "tests.train.small:at_positions"


def test_the_likeliest_tokens_of_each_masked_place_are_given() -> None:
    folder = finished("mlm", MODEL)
    outcome = done("predict", model=folder, fill_mask="good [MASK] and [MASK] .", top=3, json=True)
    guesses = json.loads(outcome.out)
    assert [len(candidates) for candidates in guesses] == [3, 3]
    # This model sees the token in its place alone: both places are alike.
    model = keras.models.load_model(folder / "model.keras")
    mask_id = json.loads((folder / "model.json").read_text())["manifest"]["tokenizer"]["mask_id"]
    row = np.full((1, 16), mask_id, np.int32)
    logits = model({"input_ids": row, "masked_positions": np.array([[1]], np.int32)})
    chances = tf.nn.softmax(logits)[0, 0].numpy()
    assert [guess["id"] for guess in guesses[0]] == np.argsort(-chances)[:3].tolist()
    likeliest = np.sort(chances)[::-1][:3].tolist()
    assert [guess["probability"] for guess in guesses[0]] == pytest.approx(likeliest, rel=1e-5)
    assert guesses[0][0]["token"] in outcome.err, "the table names it"
    assert guesses[0][0]["text"].startswith("good")
    assert "[MASK]" in guesses[0][0]["text"], "the other place is still open"


@pytest.mark.parametrize(
    ("text", "words"), [("no gap", "the text has no mask token, expected [MASK]"), ("[MASK] " * 20, "22 tokens")]
)
def test_a_text_that_cannot_be_filled_in_is_refused(text: str, words: str) -> None:
    assert words in command("predict", model=finished("mlm", MODEL), fill_mask=text).error[0]


def test_a_model_of_another_task_is_refused() -> None:
    outcome = command("predict", model=finished("classify", "tests.train.small:bag"), fill_mask="a [MASK]")
    assert "trained for classify, expected a model for mlm" in outcome.error[0]


def test_a_model_without_its_tokenizer_says_so(tmp_path: Path) -> None:
    shutil.copytree(finished("mlm", MODEL), tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer"))
    outcome = command("predict", model=tmp_path / "model", fill_mask="[MASK]")
    assert "the model's folder has no folder tokenizer/" in outcome.error[0]
