"""Each invariant of decoded records by itself: two sound records pass, and one wrong value is named."""

from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit.invariants import check_columns
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.prepare.export.megatron import MegatronWriter
from tests.tfrecord_io.conftest import integers, make_manifest, tokenizer_facts
from tfrecord_io.errors import CorruptRecordError
from tfrecord_io.manifest import Manifest
from tfrecord_io.schema import Schema

L = 4
# Sound columns of two records by role, int64 [2, L] or [2]: the name of a feature is its role.
SOUND: dict[str, Any] = {
    "token_ids": [[5, 6, 0, 0], [5, 6, 7, 0]],
    "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 0]],
    "num_tokens": [2, 3],
    "segment_ids": [[1, 1, 0, 0], [1, 2, 2, 0]],
    "positions": [[0, 1, 0, 0], [0, 0, 1, 0]],
    "target_ids": [[8, 0, 0, 0], [8, 9, 0, 0]],
    "target_mask": [[1, 0, 0, 0], [1, 1, 0, 0]],
    "loss_mask": [[0, 1, 0, 0], [0, 0, 1, 0]],
    **{f"{side}_ids": [[5, 6, 0, 0], [5, 6, 7, 0]] for side in ("chosen", "rejected")},
    **{f"{side}_mask": [[1, 1, 0, 0], [1, 1, 1, 0]] for side in ("chosen", "rejected")},
    **{f"{side}_loss_mask": [[0, 1, 0, 0], [0, 1, 1, 0]] for side in ("chosen", "rejected")},
    "token_labels": [[1, 0, 0, 0], [0, 1, 0, 0]],
    "token_label_mask": [[1, 0, 0, 0], [1, 1, 0, 0]],
    "char_starts": [[0, 3, 0, 0], [0, 2, 4, 0]],
    "char_ends": [[2, 5, 0, 0], [1, 3, 6, 0]],
    "start_position": [0, 1],
    "end_position": [1, 2],
    "source_row": [4, 5],
    "label": [0, 1],
}
MASKED = ("token_ids", "attention_mask")
SEGMENTS = ("token_ids", "segment_ids", "positions")
CHARACTERS = (*MASKED, "char_starts", "char_ends", "start_position", "end_position", "source_row")
TAGS = (*MASKED, "token_labels", "token_label_mask")
TARGETS = (*MASKED, "target_ids", "target_mask")
PAIRS = tuple(f"{side}_{kind}" for side in ("chosen", "rejected") for kind in ("ids", "mask", "loss_mask"))


def manifest_of(roles: tuple[str, ...], columns: dict[str, np.ndarray], **changes: Any) -> Manifest:
    features = tuple(integers(role, role, *columns[role].shape[1:]) for role in roles)  # type: ignore[arg-type]
    fields: dict[str, Any] = {"layout": {"name": "pad", "max_length": L}, "label_names": ("no", "yes"), **changes}
    return make_manifest(Schema(features), **fields)


def columns_of(roles: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {role: np.array(SOUND[role], np.int64) for role in roles}


@pytest.mark.parametrize(
    ("roles", "place", "value", "message"),
    [
        (MASKED, ("token_ids", 1, 0), -1, "token_ids outside 0 to 999"),
        (MASKED, ("token_ids", 1, 0), 1000, "token_ids outside 0 to 999"),
        (MASKED, ("token_ids", 1, 3), 5, "token_ids other than 0 in the padding"),
        (MASKED, ("attention_mask", 1, 1), 2, "attention_mask with values other than 0 and 1"),
        (MASKED, ("attention_mask", 1, 1), 0, "an attention mask that is not one run of 1 with padding on the right"),
        (("token_ids", "num_tokens"), ("num_tokens", 1), 0, "num_tokens outside 1 to 4"),
        (("token_ids", "num_tokens"), ("num_tokens", 1), 5, "num_tokens outside 1 to 4"),
        (("token_ids", "num_tokens"), ("num_tokens", 1), 2, "token_ids other than 0 in the padding"),
        *(
            (SEGMENTS, ("segment_ids", *at), value, "segment_ids that do not ascend by one from 1 before padding")
            for *at, value in [(1, 1, 3), (1, 2, 1), (1, 1, 0), (0, 3, 2), (1, 0, 0), (1, 0, 2)]
        ),
        (SEGMENTS, ("segment_ids", 1, 3), -1, "segment_ids below 0"),
        *(
            (SEGMENTS, ("positions", 1, place), value, "positions that do not count each segment from 0")
            for place, value in [(0, 1), (1, 1), (2, 0), (2, 2)]
        ),
        (SEGMENTS, ("positions", 1, 3), 1, "positions other than 0 in the padding"),
        (SEGMENTS, ("positions", 1, 3), -3, "positions below 0"),
        (SEGMENTS, ("token_ids", 1, 3), 7, "token_ids other than 0 in the padding"),
        (TARGETS, ("target_ids", 1, 0), 1000, "target_ids outside 0 to 999"),
        (TARGETS, ("target_ids", 1, 0), -1, "target_ids outside 0 to 999"),
        (TARGETS, ("target_mask", 1, 0), 2, "target_mask with values other than 0 and 1"),
        (TARGETS, ("target_mask", 1, 0), 0, "a target mask that is not one run of 1 with padding on the right"),
        (TARGETS, ("target_mask", 1, 3), 1, "a target mask that is not one run of 1 with padding on the right"),
        (TARGETS, ("target_ids", 1, 3), 9, "target_ids other than 0 in the padding"),
        ((*MASKED, "loss_mask"), ("loss_mask", 1, 0), 2, "loss_mask with values other than 0 and 1"),
        ((*MASKED, "loss_mask"), ("loss_mask", 1, 3), 1, "loss_mask other than 0 in the padding"),
        ((*SEGMENTS, "loss_mask"), ("loss_mask", 1, 3), 1, "loss_mask other than 0 in the padding"),
        *(
            case
            for side in ("chosen", "rejected")
            for case in (
                (PAIRS, (f"{side}_ids", 1, 0), 1000, f"{side}_ids outside 0 to 999"),
                (PAIRS, (f"{side}_ids", 1, 3), 9, f"{side}_ids other than 0 in the padding"),
                (PAIRS, (f"{side}_mask", 1, 0), 0, f"a {side} mask that is not one run of 1 with padding on the right"),
                (PAIRS, (f"{side}_loss_mask", 1, 2), 0, f"no {side} answer at the end of its row"),
                (PAIRS, (f"{side}_loss_mask", 0, 1), 0, f"no {side} answer at the end of its row"),
                (PAIRS, (f"{side}_loss_mask", 1, 3), 1, f"no {side} answer at the end of its row"),
            )
        ),
        (TAGS, ("token_label_mask", 1, 0), 2, "token_label_mask with values other than 0 and 1"),
        (TAGS, ("token_label_mask", 1, 3), 1, "token_label_mask other than 0 in the padding"),
        (TAGS, ("token_labels", 1, 2), 1, "a tag on a token that tag_mask says has none"),
        (TAGS, ("token_labels", 1, 0), 2, "a tag outside 0 to 1"),
        (CHARACTERS, ("char_starts", 1, 0), -1, "char_starts below 0"),
        (CHARACTERS, ("char_starts", 1, 0), 2, "a char_starts after char_ends"),
        (CHARACTERS, ("char_ends", 1, 3), 7, "char_ends other than 0 in the padding"),
        (CHARACTERS, ("start_position", 1), 3, "start_positions after end_positions"),
        (CHARACTERS, ("end_position", 1), 4, "or outside 0 to 3"),
        (CHARACTERS, ("end_position", 1), 3, "an answer that reaches into the padding"),
        (CHARACTERS, ("source_row", 1), -1, "source_row below 0"),
        ((*MASKED, "label"), ("label", 1), 2, "a label outside 0 to 1"),
        ((*MASKED, "label"), ("label", 1), -1, "a label outside 0 to 1"),
    ],
)
def test_a_wrong_value_is_named(roles: tuple[str, ...], place: tuple[Any, ...], value: int, message: str) -> None:
    columns = columns_of(roles)
    manifest = manifest_of(roles, columns)
    check_columns(columns, manifest, path="s", first=7)
    columns[place[0]][place[1:]] = value
    with pytest.raises(CorruptRecordError) as raised:
        check_columns(columns, manifest, path="s", first=7)
    assert raised.value.cause.startswith(f"s, record {7 + place[1]}: ")
    assert message in raised.value.cause


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_vector_of_classes_has_only_0_and_1(wrong: int) -> None:
    columns = {**columns_of(MASKED), "label": np.array([[0, 1], [1, 1]])}
    manifest = manifest_of((*MASKED, "label"), columns)
    check_columns(columns, manifest, path="s", first=0)
    columns["label"][1, 0] = wrong
    with pytest.raises(CorruptRecordError, match="a label with values other than 0 and 1"):
        check_columns(columns, manifest, path="s", first=0)


@pytest.mark.parametrize(("vocab_size", "itemsize"), [(65_499, 2), (65_500, 4)])
def test_megatrons_bound_decides_the_size_of_its_ids(vocab_size: int, itemsize: int) -> None:
    """`megatron/core/datasets/indexed_dataset.py`, `DType.optimal_dtype`: uint16 below 65,500."""
    columns = columns_of(("token_ids", "num_tokens"))
    named = {"input_ids": columns["token_ids"], "num_tokens": columns["num_tokens"]}
    schema = Schema((integers("input_ids", "token_ids", L), integers("num_tokens", "num_tokens")))
    layout, facts = {"name": "concat", "max_length": L}, tokenizer_facts(vocab_size=vocab_size)
    manifest = make_manifest(schema, layout=layout, tokenizer=facts)
    made = MegatronWriter(manifest, ExportSettings(to="megatron", output="out")).files(iter([named]))
    assert len(made["{}.bin"]) % itemsize == 0
    assert made["{}.idx"][17] == {2: 8, 4: 4}[itemsize]
