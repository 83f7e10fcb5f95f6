"""An append refuses everything except new rows after the old ones, made with the same options."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import building
from tests.prepare.append.appended import NEW, OLD, build, done, grown, json_lines, row


def grow(data: Path) -> None:
    with (data / "train-a.jsonl").open("a") as stream:
        stream.write(json.dumps(row(60)) + "\n")


def add_a_card(data: Path) -> None:
    (data / "README.md").write_text(
        "---\nconfigs:\n- {config_name: default, data_files: '*.jsonl', encoding: latin-1}\n---\n"
    )


def add_a_class(data: Path) -> None:
    (data / "train-b.jsonl").write_text(json.dumps({**row(60), "label": "other"}) + "\n")


SOURCES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file that has grown": (grow, "file train-a.jsonl of split 'train' has changed: it had"),
    "a file that is gone": (lambda data: (data / "train-a.jsonl").unlink(), "file train-a.jsonl of split 'train' is"),
    "other content": (lambda data: json_lines(data / "train-a.jsonl", range(1, 61)), "train-a.jsonl of split 'train'"),
    "other options in its card": (add_a_card, 'this is another source (reader: was null, now {"encoding": "latin-1"})'),
    "a new class": (add_a_class, "the new rows have other classes ('other')"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source and its dataset for tests that leave both as they are."""
    return grown(tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_is_not_the_same_with_more_rows(tmp_path: Path, source: str) -> None:
    data, out = grown(tmp_path, label_column="label")
    before = building.files(out)
    change, expected = SOURCES[source]
    change(data)
    cause, remedy = build(data, out, "--append", label_column="label").error
    assert expected in cause
    assert "--overwrite" in remedy
    assert building.files(out) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_length": 16}, "max_length: was 32, now 16"),
        ({"seed": 1}, "seed: was 0, now 1"),
        ({"shard_size": "9kB"}, "shard_bytes"),
        ({"layout": "concat", "keep_column": None}, "layout"),
        ({"tokenizer": "chats"}, "tokenizer"),
        ({"hold_out": "validation=10%"}, "hold_out"),
        ({"split": "train[10:]"}, "split 'train' has the rows [0, 60), and the rows requested now do not begin"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value)[:12],
)
def test_another_option(shared: tuple[Path, Path], changes: dict[str, object], named: str) -> None:
    data, out = shared
    before = building.files(out)
    if "tokenizer" in changes:
        changes = {"tokenizer": building.tokenizer("chats")}
    cause, remedy = build(data, out, "--append", **changes).error
    assert named in cause
    assert "build again" in remedy
    assert building.files(out) == before


def test_a_number_of_rows_to_hold_out(tmp_path: Path) -> None:
    data, out = grown(tmp_path, hold_out="validation=10")
    cause, remedy = build(data, out, "--append", hold_out="validation=10").error
    assert "hold_out" in cause
    assert "hold out a share such as 1%" in remedy


def test_an_output_that_is_not_finished(tmp_path: Path) -> None:
    cause, remedy = build(json_lines(tmp_path / "data" / "train.jsonl", OLD), tmp_path / "out", "--append").error
    assert "expected a finished dataset to append to" in cause
    assert "without --append" in remedy
    assert not (tmp_path / "out").exists()


def test_without_append_more_files_are_another_dataset_and_append_is_suggested(tmp_path: Path) -> None:
    data, out = grown(tmp_path)
    _, remedy = build(data, out).error
    assert "--append" in remedy
    done(build(data, out, "--append"))
    json_lines(data / "train-c.jsonl", NEW)
    _, remedy = build(data, out).error
    assert "--append" in remedy
