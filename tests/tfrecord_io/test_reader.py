"""Properties of the reader, on small datasets that TensorFlow wrote."""

import collections
import functools
import itertools
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tfrecord_io import conftest
from tests.tfrecord_io.conftest import LENGTH, PAD_SCHEMA, WriteDataset, context, pad_rows, pad_shards
from tfrecord_io import random_access, reader
from tfrecord_io.errors import ManifestError, ReaderError
from tfrecord_io.random_access import storage
from tfrecord_io.reader import Data, Shuffle
from tfrecord_io.schema import Feature, Schema

SMALL = Shuffle(cycle_length=2, block_length=2, window=8)


def write_data(write_dataset: WriteDataset) -> Data:
    return reader.open(write_dataset({"train": pad_shards(13, 9, 11, 7), "validation": pad_shards(4, 3, 3)}))


@pytest.fixture(scope="module")
def data(write_dataset: WriteDataset) -> Data:
    return write_data(write_dataset)


def rows_of(elements: Iterable[Any]) -> list[int]:
    return [int(row) for element in elements for row in element["row"].numpy()[element["example_weight"].numpy() == 1]]


def training_rows(
    data: Data, batches: int, *, batch: int = 8, host: tf.distribute.InputContext | None = None, **options: Any
) -> list[int]:
    fn = data.input_fn("train", global_batch_size=batch, **{"shuffle": SMALL, **options})
    return rows_of(fn(host or context()).take(batches))


class TestOpen:
    @pytest.fixture
    def data(self, write_dataset: WriteDataset) -> Data:
        """For each test its own, since some damage it."""
        return write_data(write_dataset)

    def test_a_dataset_is_shown_in_a_line(self, data: Data) -> None:
        assert repr(data) == (
            f"Data({data.root!r}: train 40, validation 10 examples; input_ids [8], attention_mask [8], "
            "token_type_ids [8], label [], row [])"
        )

    def test_a_folder_without_manifest_is_named_with_a_remedy(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(ReaderError) as caught:
            reader.open(tmp_path)
        assert caught.value.cause.startswith(f"{tmp_path}/manifest.json: no such file, expected the manifest")
        assert "prep-tfrecords build" in caught.value.remedy
        with pytest.raises(ReaderError, match="/nothing: no such folder"):
            reader.open(tmp_path / "nothing")
        (tmp_path / "file").touch()
        with pytest.raises(ReaderError, match=r"/file: not a folder"):
            reader.open(tmp_path / "file")

    @pytest.mark.slow
    def test_a_manifest_that_is_too_large_is_not_read(self, data: Data) -> None:
        os.truncate(pathlib.Path(data.root, "manifest.json"), 1 << 40)
        with pytest.raises(ManifestError, match="more than 256 MiB"):
            reader.open(data.root)

    @pytest.mark.parametrize(("content", "words"), [(None, "is missing"), (b"short", "has 5 bytes")])
    def test_a_shard_that_is_missing_or_damaged_is_named(self, data: Data, content: bytes | None, words: str) -> None:
        path = pathlib.Path(data.root, "tiny-train-00002-of-00004.tfrecord")
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        for opening in (reader.open, random_access.open):
            with pytest.raises(ReaderError, match=rf"shard {path.name} of split 'train' {words}") as caught:
                opening(data.root)
            assert f"prep-tfrecords verify {data.root} --repair" in caught.value.remedy

    @pytest.mark.slow
    @pytest.mark.parametrize("listed", ["by fsspec", "by TensorFlow"])
    def test_a_folder_elsewhere_is_listed_once(self, data: Data, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
        gfile = tf.io.gfile
        calls: list[tuple[str, str]] = []
        if listed == "by TensorFlow":
            monkeypatch.setattr(storage, "at", lambda folder: None)

        def noted(name: str, call: Any, path: str, *more: Any) -> Any:
            calls.append((name, path))
            return call(path, *more)

        for name in ("listdir", "stat", "exists", "isdir", "glob", "GFile"):
            monkeypatch.setattr(gfile, name, functools.partial(noted, name, getattr(gfile, name)))
        opened = reader.open(data.root)
        expected = [("GFile", f"{data.root}/manifest.json"), ("listdir", data.root)]
        assert calls == expected[: 1 + (listed == "by TensorFlow")]
        for step in (0, 3):
            opened.input_fn("train", global_batch_size=8, start_step=step)(context(hosts=2, replicas=2))
        assert len(calls) == 1 + (listed == "by TensorFlow"), "no index is read before a batch is asked for"
        pathlib.Path(data.root, "tiny-train-00002-of-00004.tfrecord").unlink()
        with pytest.raises(ReaderError, match=r"00002-of-00004\.tfrecord of split 'train' is missing"):
            reader.open(data.root)

    @pytest.mark.parametrize("name", ["example_weight", "attention_mask"])
    def test_a_column_must_not_have_a_name_that_elements_need(self, write_dataset: WriteDataset, name: str) -> None:
        schema = Schema((*conftest.CONCAT_SCHEMA.features, Feature(name=name, dtype="int64", shape=(), role="column")))
        with pytest.raises(ReaderError, match=name):
            reader.open(write_dataset({}, schema=schema))


class TestElements:
    def test_are_static_int32_and_float32(self, data: Data) -> None:
        dataset = data.dataset("train", global_batch_size=4)
        assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        vector, scalar = tf.TensorSpec([4, LENGTH], tf.int32), tf.TensorSpec([4], tf.int32)
        tokens = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), vector)
        weight = {"example_weight": tf.TensorSpec([4], tf.float32)}
        assert dataset.element_spec == {**tokens, "label": scalar, "row": scalar, **weight}

    def test_hold_what_was_written(self, data: Data) -> None:
        element = next(iter(data.dataset("validation", global_batch_size=10)))
        for name, column in pad_rows(10).items():
            np.testing.assert_array_equal(element[name], column)

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_get_a_mask_of_the_first_places_from_num_tokens(self, write_dataset: WriteDataset, side: str) -> None:
        rows = {"input_ids": np.full((2, LENGTH), 7), "num_tokens": np.array([3, 8])}
        root = write_dataset(
            {"test": [rows]}, schema=conftest.CONCAT_SCHEMA, tokenizer=conftest.tokenizer_facts(padding_side=side)
        )
        element = next(iter(reader.open(root).dataset("test", global_batch_size=2)))
        assert element["attention_mask"].dtype == tf.int32
        assert element["attention_mask"].numpy().tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1] * 8]

    def test_hold_constant_features_that_are_not_parsed_and_grids_of_floats(self, write_dataset: WriteDataset) -> None:
        types = Feature(name="types", dtype="int64", shape=(LENGTH,), role="token_type_ids", constant=3)
        grid = Feature(name="grid", dtype="float32", shape=(2, 3), role="column")
        columns = {"input_ids": pad_rows(2)["input_ids"], "types": np.full((2, LENGTH), 3)}
        columns["grid"] = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
        root = write_dataset({"test": [columns]}, schema=Schema((PAD_SCHEMA["input_ids"], types, grid)))
        element = next(iter(reader.open(root).dataset("test", global_batch_size=2)))
        assert (element["types"].dtype, element["grid"].dtype) == (tf.int32, tf.float32)
        for name in ("types", "grid"):
            np.testing.assert_array_equal(element[name], columns[name])

    def test_a_column_that_does_not_fit_into_int32_is_refused(self, write_dataset: WriteDataset) -> None:
        root = write_dataset({"test": [{**pad_rows(1), "row": np.array([2**31])}]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="column row: a value is too large for int32"):
            next(iter(reader.open(root).dataset("test", global_batch_size=1)))


class TestTraining:
    def test_gives_every_example_once_per_epoch_each_time_in_another_order(self, data: Data) -> None:
        rows = training_rows(data, batches=15, seed=7)
        epochs = [tuple(rows[start : start + 40]) for start in (0, 40, 80)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3
        assert len(set(epochs)) == 3

    @pytest.mark.slow
    def test_windows_do_not_cross_epochs(self, data: Data) -> None:
        wide = Shuffle(cycle_length=4, block_length=1, window=1000)
        rows = training_rows(data, batches=10, shuffle=wide)
        assert sorted(rows[:40]) == sorted(rows[40:]) == list(range(40))

    @pytest.mark.slow
    def test_repeats_a_split_that_is_smaller_than_a_batch(self, data: Data) -> None:
        rows = training_rows(data, batches=2, batch=100)
        assert set(collections.Counter(rows).values()) == {5}


class TestEvaluation:
    def test_gives_rows_in_order_and_fills_up_the_last_batch(self, data: Data) -> None:
        elements = list(data.dataset("validation", global_batch_size=4))
        assert rows_of(elements) == list(range(10))
        assert [element["example_weight"].numpy().tolist() for element in elements[1:]] == [[1] * 4, [1, 1, 0, 0]]

    def test_fill_rows_are_padding(self, write_dataset: WriteDataset) -> None:
        data = reader.open(write_dataset({"test": pad_shards(1)}, tokenizer=conftest.tokenizer_facts(pad_id=9)))
        (element,) = data.dataset("test", global_batch_size=2)
        assert element["input_ids"].numpy()[1].tolist() == [9] * LENGTH
        assert element["attention_mask"].numpy()[1].tolist() == [0] * LENGTH

    @pytest.mark.parametrize("shards", [(4, 3, 3), (1, 1), (1, 9, 2, 2, 6)], ids=str)
    @pytest.mark.parametrize(("hosts", "replicas"), [(1, 2), (2, 4), (8, 8)])
    def test_all_hosts_take_the_same_steps_and_miss_nothing(
        self, write_dataset: WriteDataset, shards: tuple[int, ...], hosts: int, replicas: int
    ) -> None:
        data = reader.open(write_dataset({"test": pad_shards(*shards)}))
        batch = 2 * replicas
        fn = data.input_fn("test", global_batch_size=batch)
        inputs = [list(fn(context(hosts=hosts, index=index, replicas=replicas))) for index in range(hosts)]
        steps = data.evaluation_steps("test", global_batch_size=batch)
        assert [len(elements) for elements in inputs] == [steps * replicas // hosts] * hosts
        assert sorted(rows_of(itertools.chain(*inputs))) == list(range(sum(shards)))

    @pytest.mark.parametrize(("training", "records"), [(False, 4), (True, 2)])
    def test_another_number_of_records_fails(self, write_dataset: WriteDataset, training: bool, records: int) -> None:
        root = write_dataset({"test": pad_shards(records)})
        conftest.claim_rows(root, 3)
        ds = reader.open(root).dataset("test", global_batch_size=1, training=training)
        with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain"):
            list(ds.take(8))


class TestRefusals:
    def test_an_unknown_split_lists_the_others(self, data: Data) -> None:
        for ask in (data.num_examples, lambda split: data.dataset(split, global_batch_size=1)):
            with pytest.raises(ReaderError, match=r"'test', expected one of \['train', 'validation'\]"):
                ask("test")

    def test_a_split_without_examples(self, write_dataset: WriteDataset) -> None:
        data = reader.open(write_dataset({"train": []}))
        with pytest.raises(ReaderError, match="no examples"):
            data.dataset("train", global_batch_size=1)

    @pytest.mark.parametrize("number", [0, -8, 2.5, True])
    def test_sizes_that_are_no_positive_whole_numbers(self, data: Data, number: Any) -> None:
        for ask in (data.input_fn, data.dataset, data.steps_per_epoch, data.evaluation_steps):
            with pytest.raises(ReaderError, match="global_batch_size is"):
                ask("train", global_batch_size=number)
        for name in ("window", "cycle_length", "block_length"):
            with pytest.raises(ReaderError, match=f"{name} is .*expected a whole number of at least 1"):
                Shuffle(**{name: number})

    @pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
    def test_a_seed_out_of_range(self, data: Data, seed: Any) -> None:
        with pytest.raises(ReaderError, match="seed is"):
            data.dataset("train", global_batch_size=8, seed=seed)

    def test_a_batch_that_replicas_and_hosts_cannot_share(self, data: Data) -> None:
        with pytest.raises(ReaderError, match=r"multiple of the 4 replicas.*use 8 or 12"):
            data.input_fn("train", global_batch_size=10)(context(hosts=2, replicas=4))
        with pytest.raises(ReaderError, match="3 replicas on 2 hosts"):
            data.input_fn("train", global_batch_size=6)(context(hosts=2, replicas=3))


class TestSteps:
    def test_of_an_epoch_are_the_whole_batches(self, data: Data) -> None:
        assert data.steps_per_epoch("train", global_batch_size=16) == 2
        assert data.steps_per_epoch("train", global_batch_size=1000) == 1, "at least one"
