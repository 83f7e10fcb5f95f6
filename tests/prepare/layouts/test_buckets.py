"""With several lengths of rows each row is in the smallest that holds it, and all else is as with one length."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.options.bucket_lengths import choose
from tests import building
from tests.building import REVIEWS, read_manifest

LENGTHS = (16, 24, 40)
OPTIONS: dict[str, Any] = {
    "label_column": "label",
    "max_length": None,
    "bucket_lengths": "16,24,40",
    "shard_size": "10kB",
}


def bucketed(**changes: Any) -> Path:
    return building.built(REVIEWS, **{**OPTIONS, **changes})


def test_shards_have_a_length_and_a_task_and_stand_in_order() -> None:
    facts = read_manifest(bucketed())
    assert facts.bucket_lengths == LENGTHS
    assert facts.row_length == 40
    split = facts.splits["train"]
    count = len(split.by_task())
    assert count > 1
    assert [(shard.length, shard.task) for shard in split.shards] == [
        (length, task) for length in LENGTHS for task in range(count)
    ]
    names = [f"reviews-train-b{shard.length}-{shard.task:05d}-of-{count:05d}.tfrecord" for shard in split.shards]
    assert [shard.name for shard in split.shards] == names


def test_a_length_of_which_a_task_has_no_row_gets_no_file(tmp_path: Path) -> None:
    """One row is long and many are short: few tasks have rows of the largest length, none of the middle one."""
    rows = [{"text": "word " * (25 if row == 7 else 3)} for row in range(200)]
    data = building.source(tmp_path / "data", train=rows)
    sparse = building.built(data, bucket_lengths="8,16,32", max_length=None, shard_size="3kB")
    tasks = read_manifest(sparse).splits["train"].by_task()
    assert sorted(tasks) == list(range(len(tasks)))
    assert len(tasks) > 3
    lengths = [tuple(shard.length for shard in made) for made in tasks.values()]
    assert sorted(lengths, key=len) == [*[(8,)] * (len(tasks) - 1), (8, 32)]
    assert building.command("verify", sparse).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [None, 64])
def test_the_lengths_that_are_chosen_waste_least_of_all_rows(max_length: int | None) -> None:
    """The sample is the whole split, since it is small."""
    facts = read_manifest(root := bucketed(bucket_lengths="auto:3", max_length=max_length, split="train"))
    lines = (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()
    tokens = [len(ids) for ids in load_tokenizer(str(root))([json.loads(line)["text"] for line in lines])["input_ids"]]
    longest = max_length or 512
    assert facts.bucket_lengths == choose(np.array(tokens), count=3, longest=longest, fixed=max_length is not None)


def test_without_a_usable_row_nothing_can_be_chosen(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": "word " * 30}])
    options = {"max_length": 16, "bucket_lengths": "auto:2", "truncation": "do_not_truncate", "max_error_rate": 1.0}
    cause, remedy = building.command("build", data, *building.options(tmp_path / "out", **options)).error
    assert "none of the sampled rows can be used" in cause
    assert "give --bucket-lengths 128,512" in remedy
