"""Datasets of packed rows: against a packer that is slow and plain, and through every command and reader."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.prepare.audit import invariants, reopened_dataset
from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.layouts.base import Encoded
from pipelines.prepare.layouts.pack import PackBuilder
from pipelines.prepare.tokenize.document_frames import DocumentFrame, open_frame
from pipelines.prepare.tokenize.ragged import from_lists
from tests import building
from tests.building import REVIEWS, built, read_manifest, read_shard
from tests.prepare.layouts import slow_packing
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import CorruptRecordError

LENGTH = 64
ROWS = [json.loads(line)["text"] for line in (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()]

Columns = dict[str, np.ndarray]


def packed(**changes: object) -> Path:
    """A finished build of the reviews, packed; some of them are longer than a row."""
    return built(REVIEWS, **{"layout": "pack", "max_length": LENGTH, "split": "train", **changes})


def shard_rows(root: Path, index: int) -> Columns:
    return read_shard(root, read_manifest(root).splits["train"].shards[index])


def documents(root: Path) -> list[list[int]]:
    """The tokens that each review should become."""
    facts, tokenizer = read_manifest(root), load_tokenizer(str(root))
    frame = open_frame(tokenizer, facts.layout.get("special_tokens", "eos"))
    ids = tokenizer(ROWS, add_special_tokens=False)["input_ids"]
    return [[*frame.before, *document, *frame.after] for document in ids]


def shard_order(root: Path, index: int, *, usable: set[int], shuffled: bool) -> list[int]:
    """The rows of a shard in the order in which they are packed, as docs/format.md says."""
    row_ranges = reopened_dataset.reopen(str(root), read_manifest(root)).task("train", index).row_ranges
    rows = np.array([row for start, stop in row_ranges for row in range(start, stop) if row in usable])
    if shuffled:
        np.random.default_rng([0, zlib.crc32(b"train"), index]).shuffle(rows)
    return [int(row) for row in rows]


def expected_rows(content: list[list[int]], *, pad_id: int) -> dict[str, list[list[int]]]:
    laid_out: dict[str, list[list[int]]] = {"input_ids": [], "segment_ids": [], "positions": []}
    for row in slow_packing.packed([len(tokens) for tokens in content], length=LENGTH):
        ids = [token for piece in row for token in content[piece.document][piece.first : piece.first + piece.size]]
        padding = [0] * (LENGTH - len(ids))
        laid_out["input_ids"].append(ids + [pad_id] * len(padding))
        marks = [segment for segment, piece in enumerate(row, start=1) for _ in range(piece.size)]
        laid_out["segment_ids"].append(marks + padding)
        laid_out["positions"].append([at for piece in row for at in range(piece.size)] + padding)
    return laid_out


# --- what is built --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (None, {}),
        pytest.param(None, {"long_documents": "drop", "max_error_rate": 1.0}, marks=pytest.mark.slow),
        pytest.param(None, {"compression": "gzip", "shard_size": "4kB"}, marks=pytest.mark.slow),
        pytest.param("byte_bpe_bos", {"special_tokens": "bos-eos"}, marks=pytest.mark.slow),
        pytest.param("byte_bpe", {"special_tokens": "none"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_records_are_those_of_a_plain_packer(zoo: Zoo, kind: str | None, changes: dict[str, Any]) -> None:
    root = packed(**changes, **({} if kind is None else {"tokenizer": zoo.path(kind)}))
    facts = read_manifest(root)
    content = documents(root)
    usable = {row for row, tokens in enumerate(content) if "long_documents" not in changes or len(tokens) <= LENGTH}
    assert len(facts.splits["train"].shards) > 1
    for index in range(len(facts.splits["train"].shards)):
        order = shard_order(root, index, usable=usable, shuffled="no_shuffle" not in changes)
        found = {name: values.tolist() for name, values in shard_rows(root, index).items()}
        assert found == expected_rows([content[row] for row in order], pad_id=facts.tokenizer.pad_id)


def test_long_documents_are_rejected_by_name_where_they_are_to_be_dropped() -> None:
    root = packed(long_documents="drop", max_error_rate=1.0)
    long = {row for row, tokens in enumerate(documents(root)) if len(tokens) > LENGTH}
    ledger = read_manifest(root).splits["train"].ledger
    assert dict(ledger.rejected) == {"too_long": len(long)}
    assert ledger.rows_used == len(ROWS) - len(long)
    named = [
        json.loads(line)["row"] for path in (root / "rejected").iterdir() for line in path.read_bytes().splitlines()
    ]
    assert set(named) == long
    assert long


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"text_column": ("text", "other")}, "two text columns"),
        ({"label_column": "label"}, "a row holds parts of many rows"),
        ({"keep_column": "label"}, "a row holds parts of many rows"),
        ({"truncation": "do_not_truncate"}, "--truncation"),
        ({"remainder": "drop"}, "--remainder"),
        ({"layout": "concat", "long_documents": "drop"}, "--long-documents"),
    ],
    ids=str,
)
def test_options_that_mean_nothing_here_are_refused(tmp_path: Path, changes: dict[str, Any], cause: str) -> None:
    options = building.options(tmp_path / "out", **{"layout": "pack", **changes})
    assert cause in building.command("build", REVIEWS, *options).error[0]


# --- verify ---------------------------------------------------------------------------------------------------------


def check(**changes: tuple[int, int, int]) -> None:
    """Checks a shard of which some values were changed: `segment_ids=(row, place, value)`."""
    rows = {name: values.copy() for name, values in shard_rows(packed(), 0).items()}
    for name, (row, place, value) in changes.items():
        rows[name][row, place] = value
    invariants.check_columns(rows, read_manifest(packed()), path="a shard", first=10)


def two_documents() -> tuple[int, int, int]:
    """A row of several documents and some padding: its number, where the second begins, and where the last ends."""
    for row, marks in enumerate(shard_rows(packed(), 0)["segment_ids"]):
        sizes = np.bincount(marks, minlength=3)
        if min(sizes[0], sizes[2], sizes[marks.max()]) >= 3:
            return row, int(sizes[1]), int((marks > 0).sum())
    raise AssertionError("no such row in the shard")


def test_segments_that_do_not_ascend_by_one_before_padding_are_found() -> None:
    row, begins, ends = two_documents()
    for place, value in [(begins, 3), (begins + 1, 1), (ends - 2, 0), (ends + 1, 3), (0, 0), (0, 2), (3, -1), (-1, 2)]:
        with pytest.raises(CorruptRecordError, match=rf"a shard, record {row + 10}: segment_ids that do not ascend"):
            check(segment_ids=(row, place, value))


def test_positions_that_do_not_count_from_0_in_each_segment_are_found() -> None:
    row, begins, ends = two_documents()
    for place, value in [(0, 1), (begins, begins), (begins + 1, 0), (ends - 1, 0), (ends, 1), (-1, 5), (3, -3)]:
        with pytest.raises(CorruptRecordError, match=rf"a shard, record {row + 10}: positions that do not count"):
            check(positions=(row, place, value))


def test_something_in_the_padding_is_found() -> None:
    row, _, ends = two_documents()
    with pytest.raises(CorruptRecordError, match="something else than the pad id"):
        check(input_ids=(row, ends, 7))


# --- the builder ----------------------------------------------------------------------------------------------------


def encoded(lists: list[list[int]], masks: list[list[int]], *, reasons: list[str]) -> Encoded:
    ragged = {
        "input_ids": from_lists(lists, dtype=np.dtype(np.uint16)),
        "loss_mask": from_lists(masks, dtype=np.dtype(np.uint8)),
    }
    lengths = ragged["input_ids"].lengths
    return Encoded(ragged=ragged, arrays={}, reasons=np.array(reasons, object), full_lengths=lengths)


def test_a_loss_mask_is_packed_with_its_documents_and_without_those_that_cannot_be_used() -> None:
    builder = PackBuilder(length=8, pad_id=0, dtype=np.dtype(np.uint16), loss_mask=True)
    builder.add(encoded([[5, 6, 7], [8, 9]], [[0, 1, 1], [1, 1]], reasons=["", "too_long"]))
    builder.add(encoded([[11, 12]], [[0, 1]], reasons=[""]))
    (chunk,) = builder.chunks(None)
    assert chunk["input_ids"].tolist() == [[5, 6, 7, 11, 12, 0, 0, 0]]
    assert chunk["loss_mask"].tolist() == [[0, 1, 1, 0, 1, 0, 0, 0]]
    assert builder.rows_used == 2
    assert list(builder.chunks(None)) == []


# --- the docs -------------------------------------------------------------------------------------------------------


def test_the_example_in_the_docs_of_the_format_is_what_is_made() -> None:
    """In letters; records are parted by `|`, and so are documents."""
    text = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    section = text.partition("### Layout `pack`")[2].partition("\n### ")[0]
    lines = dict(re.findall(r"^(documents|input_ids|segment_ids|positions) +(.+)$", section, re.MULTILINE))
    letters = {letter: index for index, letter in enumerate("_.abcdefghijklmnopqrstuvwxyz")}
    content = [[letters[letter] for letter in part.split()] for part in lines.pop("documents").split("|")]
    builder = PackBuilder(
        length=8, pad_id=letters["_"], dtype=np.dtype(np.uint16), frame=DocumentFrame(after=(letters["."],))
    )
    builder.add(encoded(content, content, reasons=[""] * len(content)))
    (chunk,) = builder.chunks(None)
    spelled = {number: letter for letter, number in letters.items()}
    for name, line in lines.items():
        shown = [part.split() for part in line.partition("(")[0].split("|")]
        made = [
            [spelled[token] if name == "input_ids" else str(token) for token in row] for row in chunk[name].tolist()
        ]
        assert shown == made
    assert len(lines) == 3
