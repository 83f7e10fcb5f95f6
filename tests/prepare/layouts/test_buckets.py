"""With several lengths of rows each row is in the smallest that holds it, and all else is as with one length."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.plan import sampling
from tests import building
from tests.building import REVIEWS, read_manifest, read_shard
from tfrecord_io.manifest import Shard

LENGTHS = (16, 24, 40)
OPTIONS: dict[str, Any] = {
    "label_column": "label",
    "max_length": None,
    "bucket_lengths": "16,24,40",
    "shard_size": "10kB",
}
ROWS = {
    split: [json.loads(line) for line in (REVIEWS / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
    for split in ("train", "validation")
}


def bucketed(**changes: Any) -> Path:
    """A finished build of the reviews. Shared."""
    return building.built(REVIEWS, **{**OPTIONS, **changes})


def every_record(root: Path, split: str) -> Iterator[tuple[int, Shard, dict[str, np.ndarray]]]:
    """Each shard of a split with its number and its records."""
    for index, shard in enumerate(read_manifest(root).splits[split].shards):
        yield index, shard, read_shard(root, shard)


# Rows


def test_each_row_is_what_transformers_pads_to_the_smallest_length_that_holds_it() -> None:
    root = bucketed()
    tokenizer = load_tokenizer(str(root))
    for split, rows in ROWS.items():
        expected = []
        for row in rows:
            tokens = len(tokenizer(row["text"], truncation=True, max_length=LENGTHS[-1])["input_ids"])
            length = min(length for length in LENGTHS if length >= tokens)
            padded = tokenizer(row["text"], truncation=True, max_length=length, padding="max_length")
            expected.append((length, *(tuple(padded[name]) for name in ("input_ids", "attention_mask"))))
        got = [
            (shard.length, tuple(ids), tuple(mask))
            for _, shard, columns in every_record(root, split)
            for ids, mask in zip(columns["input_ids"].tolist(), columns["attention_mask"].tolist(), strict=True)
        ]
        assert sorted(got) == sorted(expected)


# What the manifest says


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


def test_tokens_that_are_cut_are_counted_where_they_are_cut() -> None:
    facts = read_manifest(bucketed())
    tokenizer = load_tokenizer(str(bucketed()))
    for name, rows in ROWS.items():
        cut = sum(max(0, len(tokenizer(row["text"])["input_ids"]) - 40) for row in rows)
        assert facts.splits[name].ledger.tokens_cut == cut > 0
        assert {shard.length for shard in facts.splits[name].shards if shard.ledger.tokens_cut} == {40}


# A task without rows of some length


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """One long row among many short ones, so that few tasks have rows of the largest length; none is of the middle."""
    rows = [{"text": "word " * (25 if row == 7 else 3)} for row in range(200)]
    data = building.source(tmp_path / "data", train=rows)
    options = building.options(tmp_path / "out", bucket_lengths="8,16,32", max_length=None, shard_size="3kB")
    assert building.command("build", data, *options).status == 0
    return tmp_path / "out"


def test_a_length_of_which_a_task_has_no_row_gets_no_file(sparse: Path) -> None:
    split = read_manifest(sparse).splits["train"]
    tasks = split.by_task()
    assert sorted(tasks) == list(range(len(tasks)))
    assert len(tasks) > 3
    lengths = [tuple(shard.length for shard in made) for made in tasks.values()]
    assert sorted(lengths, key=len) == [*[(8,)] * (len(tasks) - 1), (8, 32)]
    assert building.command("verify", sparse).status == 0


# auto


def request(output: Path, **layout: Any) -> PrepareConfig:
    return PrepareConfig(
        source=SourceConfig(dataset=str(REVIEWS), splits=("train",)),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=str(output), name="reviews"),
        layout=LayoutConfig(**layout),
    )


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [None, 64])
def test_the_lengths_that_are_chosen_waste_least_of_all(tmp_path: Path, max_length: int | None) -> None:
    found = building.resolved(request(tmp_path, bucket_lengths="auto:3", max_length=max_length))
    plain = building.resolved(request(tmp_path, max_length=max_length))
    tokens, _ = sampling.row_lengths(plain.job.spec, plain.encoder, plain.source.splits)
    assert len(tokens) == len(ROWS["train"]), "so small a split is sampled as a whole"
    chosen = found.job.spec.layout.buckets
    assert chosen[-1] == found.job.spec.length == (max_length or -(-int(tokens.max()) // 8) * 8)

    def cost(lengths: tuple[int, ...]) -> int:
        return int(np.array(lengths)[np.searchsorted(lengths, np.minimum(tokens, lengths[-1]))].sum())

    others = itertools.combinations(range(8, chosen[-1], 8), 2)
    assert cost(chosen) == min(cost((*pair, chosen[-1])) for pair in others)


def test_without_a_usable_row_nothing_can_be_chosen(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": "word " * 30}])
    options = {"max_length": 16, "bucket_lengths": "auto:2", "truncation": "do_not_truncate", "max_error_rate": 1.0}
    cause, remedy = building.command("build", data, *building.options(tmp_path / "out", **options)).error
    assert "none of the sampled rows can be used" in cause
    assert "give the lengths" in remedy
