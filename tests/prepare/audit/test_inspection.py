"""Records as people read them: where they are, their text with every special token, their labels by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.audit.decode import load_tokenizer
from tests import building
from tests.building import REVIEWS, flip, reviews, train_shards

FIRST_TRAIN = (
    "[CLS] a clever little tool that fixes zippers in seconds. it saved my favourite jacket, "
    "and then my neighbour ' s tent. [SEP]"
)


def inspected(root: Path, *options: object) -> list[dict[str, Any]]:
    outcome = building.command("inspect", root, "--json", *options)
    assert outcome.status == 0, outcome.err
    rows: list[dict[str, Any]] = json.loads(outcome.out)
    return rows


def test_each_row_says_where_it_is_and_what_it_holds() -> None:
    (row,) = inspected(reviews(no_shuffle=True, max_length=64), "--split", "train", "--rows", 1)
    assert row.keys() == {"split", "shard", "record", "num_tokens", "text", "features"}
    assert row["shard"].startswith("reviews-train-00000-of-")
    assert (row["split"], row["record"]) == ("train", 0)
    assert row["text"] == FIRST_TRAIN
    text = json.loads((REVIEWS / "train.jsonl").read_text().splitlines()[0])["text"]
    assert row["num_tokens"] == len(load_tokenizer(str(reviews()))(text)["input_ids"])
    assert row["features"] == {"label": "positive"}


def test_two_rows_of_every_split_are_shown_unless_asked_otherwise() -> None:
    root = reviews()
    assert [row["split"] for row in inspected(root)] == ["train"] * 2 + ["validation"] * 2
    assert inspected(root, "--rows", 0) == []
    assert len(inspected(root, "--rows", 100)) == 100 + 80


@pytest.mark.slow
def test_padding_on_the_left_is_left_out() -> None:
    for row in inspected(reviews(padding_side="left"), "--rows", 5):
        assert "[PAD]" not in row["text"]
        assert row["text"].startswith("[CLS]")


def test_without_json_people_see_tables_on_stdout_and_nothing_else() -> None:
    outcome = building.command("inspect", reviews())
    assert outcome.err == ""
    for shown in ("input_ids", "labels: 0 = negative, 1 = positive", "vocabulary 2,000", "[CLS]", ", label '"):
        assert shown in outcome.out


def test_a_split_that_is_not_there_is_named() -> None:
    cause, remedy = building.command("inspect", reviews(), "--split", "test").error
    assert cause == f"{reviews()}: no split 'test'"
    assert remedy == "choose among train, validation"


@pytest.mark.parametrize(
    ("missing", "cause"),
    [("reviews-train-00000-of-00003.tfrecord", "no such file"), ("tokenizer", "the dataset's tokenizer is missing")],
)
def test_what_is_missing_is_named(finished: Path, missing: str, cause: str) -> None:
    path = finished / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert building.command("inspect", finished).error[0] == f"{path}: {cause}"


def test_a_damaged_record_is_named_not_shown(finished: Path) -> None:
    flip(train_shards(finished)[0], 20)
    assert "record 0" in building.command("inspect", finished).error[0]
