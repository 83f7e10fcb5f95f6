"""What no layout takes, and what no record of one can hold: options that mean nothing there, and damaged values."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit import invariants
from tests import building
from tests.building import REVIEWS, built, read_manifest, read_rows
from tfrecord_io import manifest
from tfrecord_io.errors import CorruptRecordError, ManifestError

EXAMPLES = building.REPOSITORY / "examples"
PACK: dict[str, Any] = {"layout": "pack", "max_length": 64, "split": "train"}
CHAT = {"layout": "chat", "max_length": 256, "tokenizer": building.tokenizer}
SEQ2SEQ = {"layout": "seq2seq", "text_column": "en", "target_column": "de", "target_length": 16}
QA = {"layout": "qa", "text_column": ("question", "context"), "max_length": 40, "shard_size": "10kB"}


def dataset(example: str, **options: Any) -> Path:
    """A finished build of an example. Shared."""
    if options.get("tokenizer"):
        options["tokenizer"] = building.tokenizer(example)
    return built(EXAMPLES / example, **options)


@pytest.mark.parametrize(
    ("example", "options", "cause"),
    [
        ("reviews", {**PACK, "text_column": ("text", "other")}, "two text columns"),
        ("reviews", {**PACK, "label_column": "label"}, "--layout pack with --label-column or --keep-column"),
        ("reviews", {**PACK, "keep_column": "label"}, "--layout pack with --label-column or --keep-column"),
        ("reviews", {**PACK, "remainder": "drop"}, "--remainder"),
        ("reviews", {"layout": "concat", "long_documents": "drop"}, "--long-documents"),
        ("reviews", {"layout": "pad", "pack_rows": True}, "--pack-rows"),
        ("reviews", {"layout": "pad", "messages_column": "m"}, "--messages-column"),
        ("reviews", {"layout": "pad", "target_column": "de"}, "--target-column was given with --layout pad"),
        ("reviews", {"layout": "pad", "input_prefix": "x"}, "--input-prefix was given with --layout pad"),
        ("reviews", {"layout": "qa"}, "--layout qa with the text column 'text' alone"),
        ("reviews", {"stride": 4, "text_column": ("a", "b")}, "two text columns"),
        ("reviews", {"stride": 4, "truncation": "do_not_truncate"}, "--stride with --truncation"),
        ("reviews", {"stride": 4, "layout": "concat"}, "--stride was given with --layout concat"),
        ("chats", {**CHAT, "text_column": "messages"}, "--text-column"),
        (
            "chats",
            {**CHAT, "pack_rows": True, "label_column": "label"},
            "--pack-rows with --label-column or --keep-column",
        ),
        ("chats", {**CHAT, "pack_rows": True, "keep_column": "n"}, "--pack-rows with --label-column or --keep-column"),
        ("chats", {**CHAT, "chat_date": "2024-02-30"}, "--chat-date '2024-02-30', expected a date"),
        ("chats", {**CHAT, "messages_column": "talk"}, "no column 'talk'"),
        ("translations", {**SEQ2SEQ, "target_column": None}, "--layout seq2seq without --target-column"),
        ("translations", {**SEQ2SEQ, "target_column": "fr"}, "no column 'fr'"),
        ("translations", {**SEQ2SEQ, "target_column": "en"}, "'en'] are used more than once"),
        ("translations", {**SEQ2SEQ, "target_length": 2}, "--target-length 2, but 2 positions of each target are"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, example: str, options: dict[str, Any], cause: str
) -> None:
    if options.get("tokenizer"):
        options = {**options, "tokenizer": building.tokenizer(example)}
    outcome = building.command("build", EXAMPLES / example, *building.options(tmp_path / "out", **options))
    assert cause in outcome.error[0]
    assert not (tmp_path / "out").exists()


def assert_found(root: Path, name: str, row: int, place: int | None, value: int, problem: str) -> None:
    """One value of the records of `train` is changed, and `verify`'s check of columns says where."""
    columns = {name: values.copy() for name, values in read_rows(root, "train").items()}
    invariants.check_columns(columns, read_manifest(root), path="a shard", first=10)
    columns[name][row if place is None else (row, place)] = value
    with pytest.raises(CorruptRecordError, match=rf"a shard, record {row + 10}: .*{problem}"):
        invariants.check_columns(columns, read_manifest(root), path="a shard", first=10)


def two_documents(root: Path) -> tuple[int, int, int]:
    """A row of several documents and some padding: its number, where the second begins, and where the last ends."""
    for row, marks in enumerate(read_rows(root, "train")["segment_ids"]):
        sizes = np.bincount(marks, minlength=3)
        if min(sizes[0], sizes[2], sizes[marks.max()]) >= 3:
            return row, int(sizes[1]), int((marks > 0).sum())
    raise AssertionError("no such row in the dataset")


def test_segments_that_do_not_ascend_by_one_before_padding_are_found() -> None:
    root = built(REVIEWS, **PACK)
    row, begins, ends = two_documents(root)
    for place, value in [(begins, 3), (begins + 1, 1), (ends - 2, 0), (ends + 1, 3), (0, 0), (0, 2), (3, -1), (-1, 2)]:
        assert_found(root, "segment_ids", row, place, value, "segment_ids (that do not ascend|below 0)")


def test_positions_that_do_not_count_from_0_in_each_segment_are_found() -> None:
    root = built(REVIEWS, **PACK)
    row, begins, ends = two_documents(root)
    for place, value in [(0, 1), (begins, begins), (begins + 1, 0), (ends - 1, 0), (ends, 1), (-1, 5), (3, -3)]:
        assert_found(
            root, "positions", row, place, value, "positions (that do not count|other than 0 in the padding|below 0)"
        )
    assert_found(root, "input_ids", row, ends, 7, "input_ids other than [0-9]+ in the padding")


@pytest.mark.parametrize("pack_rows", [False, True])
def test_a_loss_on_padding_is_found(pack_rows: bool) -> None:
    root = dataset("chats", **CHAT, **({"pack_rows": True} if pack_rows else {}))
    rows = read_rows(root, "train")
    (row, *_) = np.flatnonzero(rows["segment_ids" if pack_rows else "attention_mask"][:, -1] == 0).tolist()
    for place, value in [(-1, 1), (0, 2)]:
        assert_found(root, "loss_mask", row, place, value, "loss_mask (with other values|other than 0 in the padding)")


@pytest.mark.parametrize(
    ("example", "name", "place", "value", "problem"),
    [
        ("translations", "target_ids", 0, 10**6, "target_ids outside 0 to"),
        ("translations", "target_ids", 0, -1, "target_ids outside 0 to"),
        ("translations", "target_ids", -1, 7, "target_ids other than [0-9]+ in the padding"),
        ("translations", "target_mask", 0, 2, "other values than 0 and 1"),
        ("translations", "target_mask", 0, 0, "not one run of 1 before padding on the right"),
        ("translations", "target_mask", -1, 1, "not one run of 1 before padding on the right"),
        ("tags", "tag_mask", 1, 2, "tag_mask with other values"),
        ("tags", "tags", 1, 99, "a tag outside 0 to 6"),
        ("tags", "tags", 0, 1, "a tag on a token that tag_mask says has none"),
        ("questions", "char_starts", -1, -1, "char_starts below 0"),
        ("questions", "char_ends", -1, 0, "a char_starts behind char_ends"),
        ("questions", "start_positions", None, 39, "start_positions behind end_positions"),
        ("questions", "end_positions", None, 40, "start_positions behind end_positions, or one outside 0 to 39"),
        ("questions", "source_row", None, -1, "source_row below 0"),
    ],
)
def test_what_a_target_a_tag_or_a_window_cannot_be_is_found(
    example: str, name: str, place: int | None, value: int, problem: str
) -> None:
    options: dict[str, dict[str, Any]] = {"translations": SEQ2SEQ, "tags": {"layout": "tokens"}, "questions": QA}
    root = dataset(example, **options[example])
    rows, row = read_rows(root, "train"), 3
    if example == "translations":  # one that is short
        row = int(np.flatnonzero(rows["target_mask"].sum(axis=1) < 15)[0])
    elif place == -1:  # where a window has a token of the context
        place = int(np.argmax(rows["char_starts"][row]))
    assert_found(root, name, row, place, value, problem)


def test_a_manifest_in_which_a_row_is_not_one_example_is_refused() -> None:
    facts = read_manifest(dataset("translations", **SEQ2SEQ))
    split = facts.splits["train"]
    more = dataclasses.replace(split.shards[0], num_examples=split.shards[0].num_examples + 1)
    wrong = dataclasses.replace(facts, splits={"train": dataclasses.replace(split, shards=(more, *split.shards[1:]))})
    with pytest.raises(ManifestError, match="each row is one example"):
        manifest.parse(manifest.dump(wrong))
