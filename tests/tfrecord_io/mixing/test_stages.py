"""Mixtures with weights that change during a training run, and with caps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.support import seams
from tests.tfrecord_io.conftest import WriteDataset, context, digests, graph_ops, impure, pad_shards
from tfrecord_io import objectives, random_access, reader
from tfrecord_io.errors import ReaderError
from tfrecord_io.input_pipeline.host_plan import Order
from tfrecord_io.mixture import Mixture
from tfrecord_io.reader import Data, Shuffle

SMALL = Shuffle(cycle_length=2, block_length=16, window=64)
CHANGE = {0: {"a": 0.8, "b": 0.2}, 1000: {"a": 0.5, "b": 0.5}}


@pytest.fixture(scope="module")
def datasets(write_dataset: WriteDataset) -> dict[str, Data]:
    """Of 100 and 60 examples, numbered from 0 and from 1,000."""
    a = write_dataset({"train": pad_shards(60, 40)})
    b = write_dataset({"train": pad_shards(60, first=1000)})
    return {"a": reader.open(a), "b": reader.open(b)}


def elements(mixed: Mixture, *, host: int = 0, hosts: int = 1, **options: Any) -> Any:
    fn = mixed.input_fn("train", global_batch_size=16, shuffle=SMALL, **options)
    return fn(context(hosts=hosts, index=host, replicas=hosts))


def test_describe_says_rows_tokens_and_epochs(datasets: Mapping[str, Data]) -> None:
    shares = Mixture(datasets, stages=CHANGE).describe("train", global_batch_size=16, steps=1500)
    assert shares["a"] == {"rows": 16_800, "tokens": 0, "epochs": 168.0}
    assert shares["b"] == {"rows": 7_200, "tokens": 0, "epochs": 120.0}


@pytest.mark.slow
@pytest.mark.parametrize(("order", "hosts", "blocks"), [("hosts", 4, False), ("global", 1, False), ("global", 4, True)])
def test_start_step_continues_bit_for_bit_in_every_stage(
    datasets: Mapping[str, Data], order: Order, hosts: int, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        seams.put(monkeypatch, order_bytes=0)
    options: dict[str, Any] = {"order": order, "hosts": hosts, "host": hosts - 1, "seed": 3}
    options["objective"] = objectives.masked_lm(0.5)
    mixed = Mixture(datasets, stages={0: CHANGE[0], 40: CHANGE[1000]})
    whole = digests(elements(mixed, **options).take(60))
    for start in (35, 50):
        rest = elements(mixed, start_step=start, **options).take(60 - start)
        assert not impure(graph_ops(rest))
        assert digests(rest) == whole[start:]


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "in_blocks"), [(1, False), (2, True)], ids=["in memory", "in blocks"])
def test_the_global_order_is_that_of_random_access(
    datasets: Mapping[str, Data], hosts: int, in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        seams.put(monkeypatch, order_bytes=0)
    stages = {0: {"a": 0.8, "b": 0.2}, 7: {"a": 0.0, "b": 1.0}, 11: {"a": 0.5, "b": 0.5}}
    rows = {name: random_access.open(data.root)["train"] for name, data in datasets.items()}
    batches = random_access.global_batches(rows, global_batch_size=16, shuffle=SMALL, stages=stages)
    with pytest.raises(ReaderError, match="batches mix the datasets"):
        batches.indices(0)
    read_by = elements(Mixture(datasets, stages=stages), order="global", host=hosts - 1, hosts=hosts)
    read = [element["row"].numpy().tolist() for element in read_by.take(30)]
    assert read == [batches.part(step, replica=hosts - 1, replicas=hosts)["row"].tolist() for step in range(30)]
    for step in (0, 7, 11, 29):
        sources = [(name, rows[name].locate) for name, _, _ in batches.origins(step)]
        numbers = batches[step]["row"].tolist()
        assert batches.origins(step) == [
            (name, *locate(row - 1000 * (name == "b"))) for (name, locate), row in zip(sources, numbers, strict=True)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["hosts", "global"])
def test_three_stages_of_one_dataset_each(datasets: Mapping[str, Data], order: Order) -> None:
    """Follows Levanter's test of `MixtureDataset` (tests/test_mixture.py), with steps instead of sequences."""
    three = {"x": datasets["a"], "y": datasets["b"], "z": datasets["a"]}
    weights = [{name: float(name == only) for name in three} for only in three]
    mixed = Mixture(three, stages=dict(zip((0, 20, 40), weights, strict=True)))
    firsts = [int(element["row"][0]) >= 1000 for element in elements(mixed, order=order).take(50)]
    assert firsts == [False] * 20 + [True] * 20 + [False] * 10
    shares = mixed.describe("train", global_batch_size=16, steps=50)
    assert [share["rows"] for share in shares.values()] == [320, 320, 160]


EVEN, MOSTLY_A, ONLY_B = ({"a": a, "b": b} for a, b in ((0.5, 0.5), (0.8, 0.2), (0.0, 1.0)))
LATER = ((1000, MOSTLY_A), (30, ONLY_B))


@pytest.mark.slow
def test_a_later_change_leaves_earlier_batches(datasets: Mapping[str, Data]) -> None:
    batches = [digests(elements(Mixture(datasets, stages={0: EVEN, step: later})).take(30)) for step, later in LATER]
    assert batches[0] == batches[1]


@pytest.mark.parametrize(
    ("later", "in_blocks"),
    [
        *(({}, False), ({7: ONLY_B}, False), ({5: MOSTLY_A}, False), ({5: MOSTLY_A}, True)),
        *(({5: MOSTLY_A, 6: ONLY_B, 7: EVEN, 9: ONLY_B, 11: MOSTLY_A}, in_blocks) for in_blocks in (False, True)),
    ],
)
def test_a_change_within_a_window_leaves_earlier_batches_and_repeats_no_row(
    datasets: Mapping[str, Data], later: Mapping[int, Any], in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        seams.put(monkeypatch, order_bytes=0)
    rows = {name: random_access.open(data.root)["train"] for name, data in datasets.items()}
    stages = [{0: EVEN, 2: MOSTLY_A, **changes, 13: EVEN} for changes in ({6: EVEN}, later)]
    before, after = (random_access.global_batches(rows, global_batch_size=16, shuffle=SMALL, stages=s) for s in stages)
    assert [before.origins(step) for step in range(5)] == [after.origins(step) for step in range(5)]
    counts = {name: np.zeros(len(of_dataset), np.int64) for name, of_dataset in rows.items()}
    for step in range(60):
        for row in after[step]["row"].tolist():
            counts["b" if row >= 1000 else "a"][row % 1000] += 1
        assert all(np.ptp(times) <= 1 for times in counts.values())
    assert all(times.min() > 2 for times in counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["hosts", "global"])
def test_a_cap_ends_the_stream_or_refuses_a_longer_training(datasets: Mapping[str, Data], order: Order) -> None:
    mixed = Mixture(datasets, weights={"a": 0.5, "b": 0.5}, most_epochs={"b": 2})
    assert len(list(elements(mixed, order=order))) == 15
    assert len(list(elements(mixed, order=order, start_step=5, steps=15))) == 10
    for options in ({"steps": 16}, {"start_step": 15}):
        with pytest.raises(ReaderError, match="'b' reaches its maximum of 2 epochs after 15 steps"):
            elements(mixed, order=order, **options)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ({5: {"a": 1, "b": 1}}, "begin at steps \\[5\\], expected ascending whole numbers from 0 on"),
        ({}, "begin at steps \\[\\]"),
        ({0: {"a": 1, "b": 1}, 9: {"a": 1, "b": 2}, 5: {"a": 1, "b": 1}}, "expected ascending whole numbers"),
        ({0: {"a": 0, "b": 0}}, "the weight of dataset 'a' is 0, expected a number above 0"),
        ({0: {"a": 1, "c": 1}}, "weights are for \\['a', 'c'\\], expected one for each of the datasets \\['a', 'b'\\]"),
        ({0: {"a": 1, "b": -1}}, "the weight of dataset 'b' is -1"),
        ({0: {"a": 1, "b": 1}, 9: {"a": 0, "b": 0}}, "all weights from step 9 on are 0"),
        ({0: {"a": 1, "b": 0}, 9: {"a": 2, "b": 0}}, "the weight of dataset 'b' from step 0 on is 0"),
        ({0: {"a": 1, "b": 0}}, "the weight of dataset 'b' is 0, expected a number above 0"),
    ],
)
def test_wrong_stages_are_refused(datasets: Mapping[str, Data], stages: Any, words: str) -> None:
    with pytest.raises(ReaderError, match=words):
        Mixture(datasets, stages=stages)


@pytest.mark.parametrize("more", [{"weights": {"a": 1, "b": 1}}, {"temperature": 2.0}, {"maximum": 9}])
def test_stages_are_given_alone(datasets: Mapping[str, Data], more: Any) -> None:
    with pytest.raises(ReaderError, match="together, expected one of them"):
        Mixture(datasets, stages=CHANGE, **more)


@pytest.mark.parametrize("most", [{"c": 2}, {"a": 0}])
def test_wrong_caps_are_refused(datasets: Mapping[str, Data], most: Any) -> None:
    with pytest.raises(ReaderError, match="most_epochs is"):
        Mixture(datasets, most_epochs=most)
