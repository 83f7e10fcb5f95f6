"""What people read while a build goes on and when it is done: a bar on a terminal, plain lines elsewhere."""

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.filesize import decimal

from pipelines.cli import printing
from pipelines.prepare.audit.decode import DecodedRow
from pipelines.prepare.audit.trace import Contribution, Traced
from pipelines.prepare.launch.built import Built
from pipelines.prepare.launch.estimate import Cost, Estimate
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.sources.rows.unused_rows import words_of
from pipelines.terminal import tables
from tests import building
from tests.building import REVIEWS, reviews
from tests.support import seams
from tfrecord_io.shown import visible

MAKING = ("making 2 shards, reading", 100)


@pytest.fixture(autouse=True)
def every_few_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, progress_seconds=0.01)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (9_999_999, "9,999,999"), (18_241_339, "18.2 M"), (12_345_678_901, "12.3 G")]
)
def test_numbers_are_written_as_people_do(number: int, text: str) -> None:
    assert printing.count(number) == text


def _estimate(**changes: Any) -> Estimate:
    counts = {"rows": 100, "rows_rejected": 0, "rows_filtered": 0, "rows_in_other_splits": 0}
    sizes = {"shards": 1, "num_bytes": 1, "num_tokens": 1, "seconds": 1.0, "token_percentiles": {50: 3}}
    return Estimate(**{"split": "train", "layouts": (), **counts, **sizes, **changes})


@pytest.mark.parametrize(("filtered", "other", "shown"), [(30, 0, "100 30"), (0, 40, "60"), (30, 40, "60 30")])
def test_rows_of_other_splits_do_not_count_and_filtered_ones_do(filtered: int, other: int, shown: str) -> None:
    told = printed(printing.estimates, [_estimate(rows_filtered=filtered, rows_in_other_splits=other)], free=None)
    head, row = (next(line for line in told.splitlines() if word in line) for word in ("rejected", "train"))
    assert ("filtered" in head) == bool(filtered)
    assert " ".join(row.split()).startswith(f"train {shown} 0 ")


def test_at_80_columns_no_table_cuts_or_breaks_what_one_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables._TABLE_COLUMNS == 80
    seams.put(monkeypatch, table_columns=80)
    lengths = (24, 32, 48, 128, 256)
    sizes: dict[str, Any] = {"length": 256, "records": 9_999_999, "padding": 0.5, "tokens_cut": 0.5, "rows_cut": 1.0}
    costs = [Cost(layout="pad", **sizes), Cost(layout="pad to", lengths=lengths, **sizes)]
    rows = dict.fromkeys(("rows", "rows_filtered", "rows_in_other_splits", "rows_rejected"), 9_999_999)
    big = {**rows, "num_tokens": 987_654_321_000, "shards": 12_345, "num_bytes": 999_900_000_000}
    percentiles = dict.fromkeys((5, 25, 50, 75, 95, 99, 100), 131_072)
    row = _estimate(**big, split="validation", seconds=12345.6, layouts=tuple(costs), token_percentiles=percentiles)
    told = printed(printing.estimates, [row], free=None)
    assert max(map(len, told.splitlines())) <= 80
    for text in ("validation", "9,999,999", "987.7 G", "999.9 GB", "rejected", "tokens cut", "buckets "):
        assert text in told
    assert "--bucket-lengths 24,32,48,128,256\n" in told
    assert "…" not in told


def test_a_table_of_wide_numbers_has_a_column_for_each_row() -> None:
    names, wide = ("rows", "filtered", "rejected", "examples", "tokens", "cut", "shards"), ("987,654,321",) * 7
    shown = tables.table("split", *names, rows=[("train", *wide), ("validation", *wide)], numbers=7)
    lines = printed(lambda: tables.console(always=True).print(shown)).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if line.split()][2] == ["rows", "987,654,321", "987,654,321"]


def test_without_a_terminal_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with printing.watch(*MAKING, progress):
        progress.add(rows=25, tokens=1000, num_bytes=2_000, shards=1)
        text = ""
        while "\n 25%" not in text:
            time.sleep(0.01)
            text += capsys.readouterr().err
    text += capsys.readouterr().err
    assert text.startswith("making 2 shards, reading 100 rows\n")
    assert re.search(r"^ 25%  [\d,]+ rows/s  [\d,]+ tokens/s  1 shard, 2\.0 kB$", text, re.M)
    assert "\x1b" not in text
    assert "\r" not in text


def test_without_tasks_nothing_is_said_and_nothing_after_the_work_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with printing.watch("reading", 0, Progress()), pytest.raises(ArithmeticError), printing.watch(*MAKING, Progress()):
        raise ArithmeticError
    assert capsys.readouterr().err.startswith("making 2 shards, reading 100 rows\n")
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_summary_counts_what_was_made(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    text = building.command("build", REVIEWS, *options).err
    train = building.read_manifest(reviews()).splits["train"]
    cells = next(re.split(" {2,}", line.strip()) for line in text.splitlines() if line.strip().startswith("train"))
    assert cells[:4] == ["train", "320", "0", "320"]
    numbers = [train.num_tokens, train.ledger.tokens_cut, len(train.shards)]
    assert [int(cell.replace(",", "")) for cell in cells[4:7]] == numbers
    assert cells[7] == decimal(train.num_bytes)
    assert re.search(r"4 shards made, 0 kept from before, in \d+\.\d s \(fingerprint [0-9a-f]{12}\)", text)
    assert "400 rows tokenized with the engine wordpiece" in text
    again = building.command("build", REVIEWS, *options).err
    assert "0 shards made, 4 kept from before" in again
    assert "making" not in again


def on_a_terminal(arguments: list[str]) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    environment = {**building.environment(), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(arguments, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        parts = []
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # a closed terminal reads as an input/output error
                    if part := os.read(ours, 65536):
                        parts.append(part)
                        continue
                break
        status = process.wait()
    os.close(ours)
    return status, b"".join(parts).decode()


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_that_goes_away(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    status, text = on_a_terminal(building.program("build", REVIEWS, *options))
    assert status == 0, text
    assert "━" in text
    assert re.search(r"\d+ %", text)
    assert "\x1b[2K" in text, "the bar's line is erased in the end"
    assert "shards made, 0 kept" in text
    lines = text.splitlines()
    assert lines[0] == f"opening {REVIEWS} and the tokenizer {building.tokenizer()}"
    assert lines[1:4] == ["ingesting 2 files of 0.1 MB", "sampling 320 rows of train", "sampling 80 rows of validation"]


# What names and texts may hold: markup, emoji codes, escape sequences, directions, halves of surrogate pairs.
SIGNS = ["[/INST]", "[neg]", "[x", ":heart:", "\x1b[2J\x1b]0;x\x07", "\u202etxt", "a\tb\r\nc", "\ud800", "\x9b"]
NASTY = st.one_of(st.text(max_size=40), st.sampled_from(SIGNS))
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def assert_shown(text: str, told: str, *, whole: bool = True) -> None:
    """Check that `told` has no effect on a terminal, and contains the ordinary characters of `text` in order."""
    assert not CONTROLS.search(told), repr(told)
    if whole:
        letters = "".join(CONTROLS.sub(" ", visible(text, lines=True)).split())
        place = iter("".join(told.split()))
        assert all(letter in place for letter in letters), (text, told)


def printed(show: Callable[..., None], *arguments: Any, **named: Any) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        show(*arguments, **named)
    return stream.getvalue()


@given(NASTY, NASTY, NASTY)
def test_decoded_rows_are_shown_whatever_is_in_them(split: str, text: str, label: str) -> None:
    row = DecodedRow(split=split, shard="s", record=0, num_tokens=3, text=text, features={"label": label})
    told = printed(printing.rows, [row])
    assert_shown(split + text, told)
    assert all(line.startswith("    ") for line in told.splitlines()[-len(text.split("\n")) :])
    assert_shown(label, told, whole="\\" not in repr(label))


@given(NASTY, NASTY, NASTY)
def test_traced_rows_are_shown_whatever_is_in_them(name: str, text: str, file: str) -> None:
    texts = {name: text, "messages": [{"role": "user", "content": text}], "tools": None}
    row = Contribution(row=1, file=file, file_row=2, texts=texts)
    told = printed(printing.traced, Traced(split=name, shard="s", record=0, source=name, rows=(row,)))
    assert_shown(name + "[1]" + (f" = row 3 of {file}" if file else "") + name + text, told)
    assert "    tools: null\n" in told


@pytest.mark.slow
@settings(max_examples=20)
@given(NASTY, NASTY, NASTY)
def test_a_manifest_is_shown_whatever_its_names_are(split: str, label: str, reason: str) -> None:
    made = building.read_manifest(reviews())
    train, tokenizer = made.splits["train"], dataclasses.replace(made.tokenizer, name=reason)
    ledger = dataclasses.replace(train.shards[0].ledger, rejected={reason: 3})
    shards = (dataclasses.replace(train.shards[0], name=split, ledger=ledger),)
    changes = {"label_names": (label, "other"), "splits": {split: dataclasses.replace(train, shards=shards)}}
    nasty = dataclasses.replace(made, name=label, tokenizer=tokenizer, **changes)  # type: ignore[arg-type]
    told = printed(printing.manifest_tables, nasty)
    for text in (split, label):
        assert_shown(text, told)
    assert_shown(words_of(reason), told)
    built = Built(root="out", manifest=nasty, shards_made=1, shards_kept=0, seconds=1.0)
    assert_shown(words_of(reason), printed(printing.summary, built))


@settings(max_examples=30)
@given(NASTY)
def test_what_is_said_by_the_way_is_shown_whatever_it_is(note: str) -> None:
    note = f"putting rows to ftp://me:hush@host/out {note}"

    def watch() -> None:
        progress = Progress()
        with printing.watch(*MAKING, progress):
            progress.post_note(note)

    told = printed(watch)
    assert "to ftp://...@host/out" in told
    assert_shown(note.replace("me:hush", "..."), told)


def test_markup_emoji_codes_and_lines_in_a_text_stay_text() -> None:
    text = "[INST] is [neg] :heart: [/INST]\nerror: none\x1b[2J"
    row = DecodedRow(split="[train]", shard="s", record=0, num_tokens=3, text=text, features={"label": "[neg]"})
    assert printed(printing.rows, [row]) == (
        "[train] record 0 of s: 3 tokens, label '[neg]'\n    [INST] is [neg] :heart: [/INST]\n    error: none\\x1b[2J\n"
    )


def test_a_long_list_of_messages_is_shortened_and_null_is_null() -> None:
    texts = {"messages": [{"role": "user", "content": "a" * 50}] * 100, "tools": None, "n": 3}
    row = Contribution(row=1, file="https://host/x", file_row=2, texts=texts)
    told = printed(printing.traced, Traced(split="train", shard="s", record=0, source="json", rows=(row,)))
    lines = told.splitlines()
    assert len(lines[2]) < 450
    assert lines[2].endswith(f" … ({len(json.dumps(texts['messages'])):,} characters)")
    assert lines[3:] == ["    tools: null", "    n: 3"]
