"""Properties of a mixture, on small datasets that TensorFlow wrote."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tfrecord_io.conftest import LENGTH, PAD_SCHEMA, WriteDataset, context, pad_shards, tokenizer_facts
from tfrecord_io import mixture, objectives, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.mixing import common_manifest
from tfrecord_io.mixture import Mixture
from tfrecord_io.reader import Data, Shuffle
from tfrecord_io.schema import Schema

SMALL = Shuffle(cycle_length=2, block_length=2, window=8)
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
# Where a dataset's rows are numbered from: 1,000 apart, so that a row's number says which dataset it is of.
FIRST = {name: 1000 * at for at, name in enumerate(WEIGHTS)}


@pytest.fixture(scope="module")
def datasets(write_dataset: WriteDataset) -> dict[str, Data]:
    """Of 40, 21 and 100 examples; the second is compressed, the last has one shard."""
    a = write_dataset({"train": pad_shards(13, 9, 11, 7), "validation": pad_shards(5)})
    b = write_dataset({"train": pad_shards(10, 11, first=1000), "test": pad_shards(5)}, compression="gzip")
    c = write_dataset({"train": pad_shards(100, first=2000), "validation": pad_shards(5)})
    return {name: reader.open(root) for name, root in zip("abc", (a, b, c), strict=True)}


@pytest.fixture
def data(datasets: Mapping[str, Data]) -> Data:
    return datasets["a"]


@pytest.fixture
def mixed(datasets: Mapping[str, Data]) -> Mixture:
    return Mixture(datasets, weights=WEIGHTS)


def rows_of(elements: Iterable[Any]) -> list[list[int]]:
    return [element["row"].numpy().tolist() for element in elements]


def elements_of(
    mixed: Mixture, *, batch: int, steps: int, hosts: int = 1, host: int = 0, replicas: int = 1, **options: Any
) -> tf.data.Dataset:
    fn = mixed.input_fn("train", global_batch_size=batch, **{"shuffle": SMALL, **options})
    return fn(context(hosts=hosts, index=host, replicas=replicas)).take(steps * replicas // hosts)


def by_dataset(rows: Iterable[int]) -> dict[str, list[int]]:
    rows_by_name: dict[str, list[int]] = {name: [] for name in FIRST}
    for row in rows:
        rows_by_name["abc"[row // 1000]].append(row)
    return rows_by_name


class TestShares:
    @pytest.mark.slow
    def test_after_every_step_each_dataset_has_its_weight_in_rows_to_within_one(self, mixed: Mixture) -> None:
        taken = dict.fromkeys(FIRST, 0)
        for step, rows in enumerate(rows_of(elements_of(mixed, batch=7, steps=60)), 1):
            for name, some in by_dataset(rows).items():
                taken[name] += len(some)
                assert abs(taken[name] - step * 7 * WEIGHTS[name]) < 1, (step, name)

    @pytest.mark.slow
    def test_without_weights_every_example_comes_equally_often(self, datasets: Mapping[str, Data]) -> None:
        mixed = Mixture(datasets)
        assert mixed.rates("train") == pytest.approx({"a": 40 / 161, "b": 21 / 161, "c": 100 / 161})
        assert mixed.epochs("train", global_batch_size=7, step=46) == pytest.approx(dict.fromkeys("abc", 2.0))
        counts = collections.Counter(itertools.chain(*rows_of(elements_of(mixed, batch=7, steps=46))))
        assert counts == dict.fromkeys([*range(40), *range(1000, 1021), *range(2000, 2100)], 2)


class TestEachDataset:
    @pytest.mark.slow
    def test_is_read_as_it_would_be_alone(self, mixed: Mixture) -> None:
        rows = by_dataset(itertools.chain(*rows_of(elements_of(mixed, batch=10, steps=60, seed=3))))
        for name, data in mixed.datasets.items():
            alone = data.dataset("train", global_batch_size=1, seed=mixture.source_seed(3, name), shuffle=SMALL)
            expected = [int(element["row"][0]) for element in alone.take(len(rows[name]))]
            # Ten rows of a batch have 5, 3 and 2 of the datasets, in another order within the batch.
            size = int(10 * WEIGHTS[name])
            assert [set(part) for part in batched(rows[name], size)] == [set(part) for part in batched(expected, size)]


def batched(values: list[int], size: int) -> list[list[int]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def changed(data: Data, **changes: Any) -> Data:
    return dataclasses.replace(data, manifest=dataclasses.replace(data.manifest, **changes))


def with_feature(data: Data, changed_name: str, /, **changes: Any) -> Data:
    features = (
        dataclasses.replace(feature, **changes) if feature.name == changed_name else feature
        for feature in data.manifest.schema.features
    )
    return changed(data, schema=Schema(tuple(features)))


class TestRefusals:
    def refusal(self, one: Data, other: Data) -> ReaderError:
        with pytest.raises(ReaderError) as caught:
            Mixture({"one": one, "other": other})
        assert "'one'" in caught.value.cause
        assert "'other'" in caught.value.cause
        assert caught.value.remedy
        return caught.value

    def test_another_tokenizer(self, data: Data) -> None:
        facts = tokenizer_facts(name="large", content_sha256="1" * 64)
        error = self.refusal(data, changed(data, tokenizer=facts))
        assert "'large' (content 111111111111)" in error.cause
        assert "--tokenizer" in error.remedy
        assert "pad_id 3" in self.refusal(data, changed(data, tokenizer=tokenizer_facts(pad_id=3))).cause

    @pytest.mark.parametrize(
        ("name", "changes", "words", "remedy"),
        [
            ("input_ids", {"shape": (16,)}, "int64 [16] of role 'token_ids'", "--max-length"),
            ("label", {"dtype": "float32"}, "float32 [] of role 'label'", "with labels of the same kind"),
            ("row", {"name": "line"}, "'line'", "--keep-column"),
            ("attention_mask", {"role": "loss_mask"}, "role 'loss_mask'", "--layout"),
        ],
    )
    def test_another_feature(self, data: Data, name: str, changes: Any, words: str, remedy: str) -> None:
        error = self.refusal(data, with_feature(data, name, **changes))
        assert words in error.cause
        assert remedy in error.remedy

    @pytest.mark.parametrize("unlabelled_first", [True, False])
    def test_labels_in_one_only(self, data: Data, unlabelled_first: bool) -> None:
        features = tuple(feature for feature in PAD_SCHEMA.features if feature.name != "label")
        pair = [data, changed(data, schema=Schema(features))]
        error = self.refusal(*(reversed(pair) if unlabelled_first else pair))
        assert "feature 'label'" in error.cause
        assert "with labels" in error.remedy

    @pytest.mark.slow
    def test_other_label_names_with_an_objective_that_learns_labels_alone(self, data: Data) -> None:
        pair = {"a": changed(data, label_names=("no", "yes")), "b": changed(data, label_names=("yes", "no"))}
        learned = Mixture(pair).input_fn("train", global_batch_size=4, objective=objectives.masked_lm(0.15))
        assert learned(context()).element_spec
        with pytest.raises(ReaderError, match=r"same names in the same order, so that a label has one meaning"):
            Mixture(pair).input_fn("train", global_batch_size=4, objective=objectives.classification())(context())

    def test_other_tag_names_with_an_objective_that_learns_tags_alone(self, data: Data) -> None:
        tagged = with_feature(with_feature(data, "label", role="column"), "token_type_ids", role="token_labels")
        tagged = with_feature(tagged, "row", role="token_label_mask", shape=(LENGTH,))
        named = {name: changed(tagged, label_names=(name,)).manifest for name in ("PER", "LOC")}
        merged = common_manifest.merge(named, rates={})
        common_manifest.bind(objectives.masked_lm(0.15), merged, manifests=named)
        with pytest.raises(ReaderError, match=r"\['LOC'\], the labels of 'PER' are \['PER'\]"):
            common_manifest.bind(objectives.token_classification(), merged, manifests=named)

    def test_a_split_that_one_has_not(self, mixed: Mixture) -> None:
        assert list(mixed.splits) == ["train"]
        assert mixed.num_examples("train") == 161
        with pytest.raises(ReaderError, match=r"dataset 'b' .* has no split 'validation'.*; .*\['train'\]"):
            mixed.dataset("validation", global_batch_size=8, training=True)

    def test_an_evaluation(self, mixed: Mixture) -> None:
        with pytest.raises(ReaderError, match=r"a mixture cannot be evaluated.*; .*mixture\.datasets\.items\(\)"):
            mixed.dataset("train", global_batch_size=8, training=False)


class TestWhatMayDiffer:
    def test_the_order_of_the_features_and_their_descriptions(self, data: Data) -> None:
        features = tuple(dataclasses.replace(feature, meaning="other") for feature in reversed(PAD_SCHEMA.features))
        mixed = Mixture({"a": data, "b": changed(data, schema=Schema(features))})
        assert mixed.manifest.schema == data.manifest.schema

    @pytest.mark.slow
    def test_a_value_that_is_constant_in_one_of_them(self, data: Data, write_dataset: WriteDataset) -> None:
        pairs = [{**rows, "token_type_ids": rows["attention_mask"]} for rows in pad_shards(30, first=1000)]
        other = reader.open(write_dataset({"train": pairs}))
        mixed = Mixture({"a": with_feature(data, "token_type_ids", constant=0), "b": other})
        (batch,) = mixed.dataset("train", global_batch_size=70).take(1)
        expected = np.where(batch["row"][:, None] < 1000, 0, batch["attention_mask"])
        np.testing.assert_array_equal(batch["token_type_ids"], expected)


class TestManifest:
    def test_the_fingerprint_covers_datasets_and_rates(self, datasets: Mapping[str, Data]) -> None:
        def fingerprint(names: str, **options: Any) -> str:
            return Mixture({name: datasets[name] for name in names}, **options).manifest.fingerprint

        options: list[dict[str, Any]] = [{"temperature": 2.0}, {"maximum": 9}]
        options += [{"weights": {"a": 1, "b": 2}}, {"weights": {"a": 2, "b": 1}}]
        fingerprints = [fingerprint("ab"), fingerprint("ac"), *(fingerprint("ab", **changes) for changes in options)]
        assert fingerprint("ab") == fingerprints[0]
        # The datasets of this fixture all have the same one, so names distinguish a and b.
        assert len(set(fingerprints)) == len(fingerprints)

    def test_tokens_per_example_are_of_what_is_read(self, datasets: Mapping[str, Data]) -> None:
        def tokens(data: Data, count: int) -> Data:
            split = data.splits["train"]
            of_shard = dataclasses.replace(split.shards[0], num_tokens=count)
            splits = {"train": dataclasses.replace(split, shards=(of_shard, *split.shards[1:]))}
            return dataclasses.replace(data, manifest=dataclasses.replace(data.manifest, splits=splits))

        pair = {"a": tokens(datasets["a"], 40 * 8), "b": tokens(datasets["b"], 21 * 3)}
        assert Mixture(pair, weights={"a": 3, "b": 1}).tokens_per_example("train") == pytest.approx(6.75)
        staged = Mixture(pair, stages={0: {"a": 3, "b": 1}, 8: {"a": 1, "b": 0}})
        by_step = [staged.tokens_per_example("train", step=step) for step in (7, 8)]
        assert by_step == pytest.approx([6.75, pair["a"].tokens_per_example("train")])
        assert pair["a"].tokens_per_example("train", step=8) == pair["a"].tokens_per_example("train")


def test_open_shards_are_shared_among_the_datasets(datasets: Mapping[str, Data]) -> None:
    usual = Shuffle()
    one, three, many = (Mixture({str(n): datasets["a"] for n in range(count)})._usual_shuffle() for count in (1, 3, 30))
    assert (one, three.cycle_length, many.cycle_length) == (usual, 6, 4)
    assert (three.window, many.window) == (2731, 1024)
