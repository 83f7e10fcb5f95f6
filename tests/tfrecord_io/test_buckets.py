"""Whole batches of one length at a time, in proportion to their rows, and one compilation for each length."""

import collections
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.tfrecord_io.conftest import PAD_SCHEMA, context, graph_ops, impure, make_manifest, pad_rows, write_shard
from tfrecord_io import buckets, random_access, reader
from tfrecord_io import manifest as manifests
from tfrecord_io.buckets import Buckets
from tfrecord_io.errors import ManifestError, ReaderError
from tfrecord_io.format import record_index
from tfrecord_io.manifest import Split
from tfrecord_io.mixture import Mixture

LENGTHS = (4, 8, 16)
# Rows of each length, in two shards each.
ROWS = {"train": {4: 90, 8: 37, 16: 11}, "test": {4: 13, 16: 6}}


def columns_of(length: int, num_rows: int) -> dict[str, np.ndarray]:
    return pad_rows(num_rows, first=1000 * length, length=length)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> reader.Data:
    folder = tmp_path_factory.mktemp("buckets")
    splits = {}
    for split, rows in ROWS.items():
        shards = []
        for length, num_rows in rows.items():
            every = columns_of(length, num_rows)
            for task, part in enumerate((slice(num_rows // 2), slice(num_rows // 2, None))):
                some = {name: values[part] for name, values in every.items()}
                name = manifests.shard_name(name="tiny", split=split, index=task, count=2, length=length)
                schema = PAD_SCHEMA.with_row_length(length)
                shards.append(write_shard(folder, name, some, schema=schema, length=length, task=task))
        splits[split] = Split(shards=tuple(shards))
    layout = {"name": "pad", "max_length": LENGTHS[-1], "bucket_lengths": list(LENGTHS)}
    facts = {"layout": layout, "splits": splits, "index_stride": record_index.STRIDE}
    made = make_manifest(PAD_SCHEMA.with_row_length(LENGTHS[-1]), **facts)
    (folder / manifests.FILE_NAME).write_bytes(manifests.dump(made))
    return reader.open(folder)


def training(data: reader.Data, **options: Any) -> Buckets:
    return buckets.read(data, "train", **{"global_batch_size": 4, **options})


def schedule(of: Buckets, steps: int, *, start_step: int = 0) -> list[int]:
    return list(itertools.islice(of.schedule(start_step), steps))


def rows_of(batches: Any) -> list[list[int]]:
    return [batch["row"].numpy().tolist() for batch in batches]


@pytest.mark.parametrize("options", [{}, {"global_batch_size": 7}, {"global_batch_size": None, "tokens_per_batch": 64}])
def test_lengths_come_in_proportion_to_their_batches(data: reader.Data, options: dict[str, Any]) -> None:
    train = training(data, **options)
    passes = {length: rows / train.rows(length) for length, rows in ROWS["train"].items()}
    for rounds in (1, 2, 7):
        steps = sum(int(rounds * batches) for batches in passes.values())
        assert collections.Counter(schedule(train, steps)) == {
            length: count for length, batches in passes.items() if (count := int(rounds * batches))
        }


def test_lengths_are_shuffled_anew_in_each_round_and_for_each_seed(data: reader.Data) -> None:
    steps = sum(ROWS["train"].values())
    both = schedule(training(data, global_batch_size=1), 2 * steps)
    first, second = both[:steps], both[steps:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert schedule(training(data, seed=1), 40) != schedule(training(data), 40) == schedule(training(data), 40)


@pytest.mark.parametrize("step", [0, 33, 34, 35, 10**9])
def test_a_schedule_starts_at_any_step(data: reader.Data, step: int) -> None:
    train = training(data)
    before, after = train.steps_before(step), train.steps_before(step + 50)
    assert sum(before.values()) == step
    following = schedule(train, 50, start_step=step)
    assert {length: following.count(length) for length in LENGTHS} == {at: after[at] - before[at] for at in LENGTHS}
    if step < 1000:
        assert following == schedule(train, step + 50)[step:]


@pytest.mark.slow
def test_each_batch_has_rows_of_one_length_and_a_static_shape(data: reader.Data) -> None:
    train = training(data)
    for length in train.lengths:
        batches = train.input_fn(length)(context())
        assert {name: spec.shape for name, spec in batches.element_spec.items()} == {
            **dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (4, length)),
            **dict.fromkeys(("label", "row", "example_weight"), (4,)),
        }
        assert all(row // 1000 == length for rows in rows_of(batches.take(20)) for row in rows)


@pytest.mark.slow
def test_a_dataset_for_keras_is_the_batches_of_the_schedule(data: reader.Data) -> None:
    train = training(data, seed=2)
    streams = {length: iter(train.input_fn(length)(context())) for length in train.lengths}
    expected = rows_of(next(streams[length]) for length in schedule(train, 30))
    batches = train.dataset()
    assert rows_of(batches.take(30)) == expected
    assert batches.element_spec["input_ids"].shape.as_list() == [4, None], "lengths differ"
    assert impure(graph_ops(batches)) == set()
    assert rows_of(train.dataset(start_step=21).take(9)) == expected[21:]


@pytest.mark.parametrize(
    ("budget", "replicas", "rows"),
    [(64, 1, {4: 16, 8: 8, 16: 4}), (100, 1, {4: 25, 8: 12, 16: 6}), (100, 4, {4: 24, 8: 12, 16: 4})],
)
def test_a_budget_of_tokens_is_kept(data: reader.Data, budget: int, replicas: int, rows: dict[int, int]) -> None:
    train = training(data, global_batch_size=None, tokens_per_batch=budget, replicas=replicas)
    assert {length: train.rows(length) for length in train.lengths} == rows


@pytest.mark.slow
def test_hosts_share_one_order_of_each_length(data: reader.Data) -> None:
    length = LENGTHS[0]
    whole = rows_of(training(data, order="global").input_fn(length)(context()).take(6))
    two = training(data, order="global", replicas=2)
    halves = [rows_of(two.input_fn(length)(context(hosts=2, index=host, replicas=2)).take(6)) for host in range(2)]
    assert [first + second for first, second in zip(*halves, strict=True)] == whole
    assert schedule(two, 9) == schedule(training(data, order="global"), 9)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"global_batch_size": 4}, {"tokens_per_batch": 48}])
def test_an_evaluation_has_every_example_once(data: reader.Data, options: dict[str, Any]) -> None:
    evaluation = buckets.read(data, "test", **options)
    assert evaluation.lengths == (4, 16)
    batches = evaluation.dataset()
    assert int(batches.cardinality()) == evaluation.steps_per_epoch == len(list(evaluation.schedule()))
    seen, lengths = [], []
    for batch in batches:
        lengths.append(batch["input_ids"].shape[1])
        seen += batch["row"].numpy()[batch["example_weight"].numpy() == 1].tolist()
    assert seen == [1000 * length + row for length, count in ROWS["test"].items() for row in range(count)]
    assert lengths == list(evaluation.schedule())
    assert len(list(evaluation.dataset(start_step=3))) == len(lengths) - 3


def test_a_dataset_of_several_lengths_is_not_read_as_if_it_had_one(data: reader.Data) -> None:
    for read in (data.input_fn, data.dataset):
        with pytest.raises(ReaderError, match=r"rows have several lengths, \[4, 8, 16\], expected one") as caught:
            read("train", global_batch_size=4)
        assert "buckets.read(data, 'train', …)" in str(caught.value.remedy)
    rows = random_access.open(data.root)
    with pytest.raises(ReaderError, match=r"several lengths, .* expected one.*; .*data\.bucket\(4\)\['test'\]"):
        rows["test"]
    assert {at: rows.bucket(at)["train"][:]["row"].tolist() for at in LENGTHS} == {
        at: columns_of(at, count)["row"].tolist() for at, count in ROWS["train"].items()
    }
    mixed = Mixture({"a": data, "b": data})
    with pytest.raises(ReaderError, match="rows have several lengths"):
        mixed.input_fn("train", global_batch_size=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "tokens_per_batch is None, expected one of them"),
        ({"global_batch_size": 4, "tokens_per_batch": 64}, "expected one of them"),
        ({"tokens_per_batch": 63, "replicas": 4}, "tokens_per_batch is 63, expected at least 64"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0, expected a whole number"),
        ({"global_batch_size": 6, "replicas": 4}, "expected a multiple of the 4 replicas"),
        ({"global_batch_size": 4, "seed": -1}, "seed is -1"),
        ({"global_batch_size": 4, "replicas": 0}, "replicas is 0"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(data: reader.Data, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ReaderError, match=message):
        buckets.read(data, "train", **options)


def test_there_is_nothing_to_read_of_another_split_or_length(data: reader.Data) -> None:
    with pytest.raises(ReaderError, match="no split 'dev'"):
        buckets.read(data, "dev", global_batch_size=4)
    with pytest.raises(ReaderError, match=r"split 'test' has no rows of length 8, expected one of \[4, 16\]"):
        buckets.read(data, "test", global_batch_size=4).input_fn(8)
    with pytest.raises(ReaderError, match="all rows have 8 tokens, expected several lengths"):
        buckets.read(data.bucket(8), "train", global_batch_size=4)
    with pytest.raises(ReaderError, match="start_step is -1"):
        training(data).dataset(start_step=-1)


def edited(data: reader.Data, **changes: Any) -> bytes:
    """The manifest with another field in its first training shard, or another layout."""
    split = data.manifest.splits["train"]
    layout = changes.pop("layout", data.manifest.layout)
    first = dataclasses.replace(split.shards[0], **changes)
    splits = {"train": Split(shards=(first, *split.shards[1:]))}
    return manifests.dump(dataclasses.replace(data.manifest, layout=layout, splits=splits))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 5}, r"row length 5 and task 0, expected a length of \[4, 8, 16\] and a task"),
        ({"length": None}, "None, expected a whole number"),
        ({"task": None}, "None, expected a whole number"),
        ({"task": 1}, "two shards have the same task and row length"),
        ({"layout": {"name": "pad", "max_length": 16}}, "expected neither, since there are no bucket lengths"),
        *(
            ({"layout": {"name": "pad", "max_length": 16, "bucket_lengths": lengths}}, "expected ascending lengths")
            for lengths in ([], [4, 8], [8, 4, 16], [4, 4, 16], [0, 16])
        ),
    ],
    ids=str,
)
def test_a_contradictory_manifest_is_refused(data: reader.Data, changes: dict[str, Any], message: str) -> None:
    assert manifests.parse(edited(data)).bucket_lengths == LENGTHS
    with pytest.raises(ManifestError, match=message):
        manifests.parse(edited(data, **changes))
