"""Columns without padding, of small arrays: one layout's features each."""

from typing import get_args

import numpy as np
import pytest

from pipelines.prepare.export import token_columns
from tfrecord_io.manifest import Manifest, TokenizerFacts
from tfrecord_io.schema import Feature, Role, Schema

ROLES = get_args(Role)


def lists(side: str = "right", extra: tuple[str, ...] = (), **columns: object) -> dict[str, object]:
    """What `unpadded` makes of one row of columns, each of the role that it is named after; plain lists."""
    arrays = {name: np.array([values], np.int64) for name, values in columns.items()}
    features = tuple(
        Feature(name=name, dtype="int64", shape=values.shape[1:], role=name if name in ROLES else "column")  # type: ignore[arg-type]
        for name, values in arrays.items()
    )
    facts = TokenizerFacts(
        name="t",
        kind="T",
        vocab_size=100,
        content_sha256="0" * 64,
        special_ids=(0,),
        padding_side=side,  # type: ignore[arg-type]
        pad_id=0,
    )
    manifest = Manifest(
        name="d", fingerprint="0", schema=Schema(features), layout={"name": "x"}, tokenizer=facts, splits={}
    )
    lists_by_name = token_columns.unpadded(arrays, manifest, extra=extra)
    assert all(column.counts is None or column.counts.sum() == len(column.values) for column in lists_by_name.values())
    return {name: column.values.tolist() for name, column in lists_by_name.items()}


@pytest.mark.parametrize(
    ("side", "ids", "mask"), [("right", [5, 6, 7, 0], [1, 1, 1, 0]), ("left", [0, 5, 6, 7], [0, 1, 1, 1])]
)
def test_padding_goes_from_either_side(side: str, ids: list[int], mask: list[int]) -> None:
    assert lists(side, token_ids=ids, attention_mask=mask) == {"input_ids": [5, 6, 7]}


def test_tokens_that_are_not_learned_have_the_label_that_losses_leave_out() -> None:
    row = lists(token_ids=[5, 6, 7, 0], attention_mask=[1, 1, 1, 0], loss_mask=[0, 0, 1, 0])
    assert row == {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}


def test_targets_are_labels_of_their_own_length() -> None:
    row = lists(token_ids=[5, 6, 0, 0], attention_mask=[1, 1, 0, 0], target_ids=[8, 9, 1, 0], target_mask=[1, 1, 1, 0])
    assert row == {"input_ids": [5, 6], "labels": [8, 9, 1]}


def test_tags_are_labels_where_there_is_one() -> None:
    row = lists(
        token_ids=[2, 5, 6, 0], attention_mask=[1, 1, 1, 0], token_labels=[0, 3, 0, 0], token_label_mask=[0, 1, 1, 0]
    )
    assert row == {"input_ids": [2, 5, 6], "labels": [-100, 3, 0]}


def test_packed_rows_say_where_documents_begin() -> None:
    row = lists(token_ids=[5, 6, 7, 0], segment_ids=[1, 1, 2, 0], positions=[0, 1, 0, 0], loss_mask=[0, 1, 1, 0])
    assert row == {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "seq_lengths": [2, 1], "position_ids": [0, 1, 0]}


@pytest.mark.parametrize(("places", "expected"), [([2, 3], [1, 2]), ([0, 0], [0, 0])])
def test_answers_are_counted_from_the_first_token(places: list[int], expected: list[int]) -> None:
    row = lists(
        "left", token_ids=[0, 5, 6, 7], attention_mask=[0, 1, 1, 1], start_position=places[0], end_position=places[1]
    )
    assert (row["start_position"], row["end_position"]) == ([expected[0]], [expected[1]])


def test_kept_columns_stay_as_they_are() -> None:
    row = lists(token_ids=[5, 0, 0, 0], attention_mask=[1, 0, 0, 0], vector=[3, 4], number=7)
    assert (row["vector"], row["number"]) == ([[3, 4]], [7])
