"""Receipts come back as they were written, and a split's receipts must account for every planned row."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.dataset.receipts import Receipt, dump, parse, to_split, with_labels
from pipelines.prepare.sources.rows.unused_rows import RejectedRow
from tests.support.manifests import make_shard
from tfrecord_io.errors import LedgerError
from tfrecord_io.format.json_fields import WRONG
from tfrecord_io.manifest import LabelRange, Ledger


def _receipt(index: int = 0, *, used: int = 3, rejected: dict[str, int] | None = None, **changes: int) -> Receipt:
    reasons = rejected or {}
    ledger = Ledger(rows_in=used + sum(reasons.values()), rows_used=used, rejected=reasons, **changes)  # type: ignore[arg-type]
    shard = make_shard(f"x-{index}.tfrecord", num_bytes=10, num_examples=used, num_tokens=5, ledger=ledger)
    first = tuple(RejectedRow(row=row, reason=reason) for row, reason in enumerate(sorted(reasons)))
    facts: dict[str, Any] = {"engine": "wordpiece 1", "rows_checked": 2, "fingerprint": "f" * 32, "split": "train"}
    return Receipt(**facts, index=index, shards=(shard,), first_rejected=first)


@given(
    index=st.integers(0, 10**6),
    used=st.integers(1, 10**9),
    rejected=st.dictionaries(st.text(max_size=5), st.integers(1, 99), max_size=4),
    cut=st.integers(0, 10**12),
)
def test_a_receipt_survives_its_file(index: int, used: int, rejected: dict[str, int], cut: int) -> None:
    receipt = _receipt(index, used=used, rejected=rejected, tokens_cut=cut)
    assert parse(dump(receipt)) == receipt


def test_a_receipt_of_several_lengths_survives_its_file_and_its_ledger_is_the_sum() -> None:
    one = _receipt(used=3, rejected={"text_null": 1}, tokens_cut=2)
    (shard,) = one.shards
    short, long = (
        dataclasses.replace(shard, name=f"x-b{length}.tfrecord", length=length, task=0) for length in (8, 16)
    )
    long = dataclasses.replace(long, ledger=Ledger(rows_in=5, rows_used=5, tokens_cut=4))
    both = dataclasses.replace(one, shards=(short, long))
    assert parse(dump(both)) == both
    assert both.ledger == Ledger(rows_in=9, rows_used=8, rejected={"text_null": 1}, tokens_cut=6)


def _damaged(**changes: Any) -> bytes:
    return json.dumps({**json.loads(dump(_receipt(rejected={"text_null": 1}))), **changes}).encode()


def _damaged_shard(**changes: Any) -> bytes:
    return _damaged(shards=[{**json.loads(dump(_receipt()))["shards"][0], **changes}])


def _damaged_ledger(**changes: Any) -> bytes:
    return _damaged_shard(ledger={**json.loads(dump(_receipt()))["shards"][0]["ledger"], **changes})


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff\xfe", b"[]", b"{}", dump(_receipt())[:-20]),
        *(_damaged(shards={}), _damaged(shards=[]), _damaged(shards=[{}]), _damaged_shard(name="../x")),
        *(_damaged(first_rejected=[{"row": 1}]), _damaged(fingerprint="../.."), _damaged(split="a/b")),
        *(_damaged(index=value) for value in ("first", None, True, -1, 1.0, float("inf"))),
        *(_damaged_shard(length=value) for value in ("64", -1, True, 6.4)),
        dump(_receipt(rejected={"x": 1})).replace(b'"x": 1', b'"x": null'),
        dump(_receipt(rejected={"x": 1})).replace(b'"x"', b'"\\ud800"'),
        *(_damaged_ledger(rejected=[]), _damaged_ledger(rejected=[["x", 1]])),
        b"[" * 100_000,
        # What no manifest could take over.
        *(_damaged_shard(sha256=digest) for digest in ("", "0" * 63, "0" * 64 + "\n", "G" * 64)),
        _damaged_shard(num_examples=0),
        *(_damaged_ledger(rows_in=4), _damaged_ledger(rows_used=2), _damaged_ledger(rejected={"text_null": 1})),
    ],
)
def test_a_damaged_receipt_is_refused(text: bytes) -> None:
    with pytest.raises(WRONG):
        parse(text)


def test_a_split_has_its_shards_in_order_and_the_sum_of_all_ledgers() -> None:
    made = [
        _receipt(1, used=4, rejected={"label_null": 2, "text_null": 1}, tokens_cut=7),
        _receipt(0, used=3, rejected={"text_null": 1}, tokens_cut=1),
    ]
    split = to_split(made, rows_in=11)
    assert [shard.name for shard in split.shards] == ["x-0.tfrecord", "x-1.tfrecord"]
    assert split.ledger == Ledger(rows_in=11, rows_used=7, rejected={"text_null": 2, "label_null": 2}, tokens_cut=8)


@pytest.mark.parametrize(
    ("made", "rows_in"),
    [
        ([_receipt(0)], 4),  # a row is missing
        ([_receipt(0), _receipt(0)], 3),  # counted twice
        ([], 1),
    ],
)
def test_rows_that_are_not_accounted_for_are_an_error(made: list[Receipt], rows_in: int) -> None:
    with pytest.raises(LedgerError, match=rf"of {rows_in} planned rows?, .*expected all to be read once"):
        to_split(made, rows_in=rows_in)


def _labelled(*labels: tuple[int, ...] | None) -> LabelRange | None:
    made = [dataclasses.replace(_receipt(index), labels=counts) for index, counts in enumerate(labels)]
    return to_split(made, rows_in=3 * len(made)).labels


def test_the_labels_of_a_split_are_those_of_all_receipts() -> None:
    receipt = dataclasses.replace(_receipt(), labels=(-1, 1))
    assert parse(dump(receipt)) == receipt
    assert _labelled((-1, 1), (1, 5)) == LabelRange(smallest=-1, largest=5, distinct=3)
    assert _labelled((-1, 1), None) is None
    many = tuple(with_labels(np.arange(9000), np.arange(9_000, 20_000)).tolist())
    assert len(many) == 10_001
    assert _labelled(many, (1,)) == LabelRange(smallest=0, largest=19_999, distinct=None)


@pytest.mark.parametrize(
    ("one", "other", "distinct"),
    [((0, 4, 5), (1, 3, 2), 5), ((0, 4, 5), (0, 4, 5), 5), ((0, 9, 3), (0, 9, 3), None), ((0, 1, 2), (2, 3, 2), None)],
)
def test_joined_ranges_know_what_is_distinct_if_one_covers_the_other(
    one: tuple[int, int, int], other: tuple[int, int, int], distinct: int | None
) -> None:
    ranges = [LabelRange(smallest=low, largest=high, distinct=count) for low, high, count in (one, other)]
    joined = ranges[0].joined(ranges[1])
    assert joined == ranges[1].joined(ranges[0])
    assert joined == LabelRange(smallest=0, largest=max(one[1], other[1]), distinct=distinct)
