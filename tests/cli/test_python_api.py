"""The commands as functions: the same datasets as from the command line, and results that a notebook shows."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines import python_options
from prep_tfrecords import build, export, inspect, plan, verify
from tests import building
from tests.building import REVIEWS, reviews
from tfrecord_io.errors import ConfigError, ManifestError

SMALL: dict[str, Any] = {"max_length": 32, "shard_size": "20kB", "workers": 1, "label_column": "label"}


def test_a_build_makes_what_the_command_makes_and_reports_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[Any, int]] = []
    options = {**SMALL, "progress": lambda counts, total: seen.append((counts, total))}
    made = build(REVIEWS, output=tmp_path / "out", tokenizer=building.tokenizer(), **options)
    assert (seen[-1][0].rows, seen[-1][0].shards, seen[-1][1]) == (400, 4, 400)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("apache_beam")] == []
    assert made.manifest == building.read_manifest(reviews())
    assert building.files(tmp_path / "out").items() >= building.shard_bytes(reviews()).items()
    assert (made.shards_made, made.shards_kept) == (4, 0)
    # As notebooks show it, without empty columns.
    planned = plan(REVIEWS, tokenizer=building.tokenizer(), **SMALL)
    assert [split.rows for split in planned.splits] == [320, 80]
    for shown in (made, planned, inspect(tmp_path / "out")):
        table = shown._repr_html_()
        assert all(words in table for words in ("<td>train</td><td>320</td>", "<th>bytes</th>"))
        assert not any(words in table for words in ("rejected", "np."))


@pytest.mark.slow
def test_flags_lists_and_lengths_are_given_as_python_has_them(tmp_path: Path) -> None:
    files = (REVIEWS / "train.jsonl", REVIEWS / "validation.jsonl")
    options: dict[str, Any] = {"bucket_lengths": [16, 32], "shuffle": False, "split": ["train[:50]"]}
    options |= {"label_column": None, "shard_size": 5000}
    made = build(*files, output=tmp_path / "out", tokenizer=building.tokenizer(), **options)
    assert made.manifest.bucket_lengths == (16, 32)
    assert made.manifest.options["shuffle"] is False
    assert made.manifest.options["shard_bytes"] == 5000
    assert [split.ledger.rows_in for split in made.manifest.splits.values()] == [50]


@pytest.mark.slow
def test_the_callers_logging_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    options = {**SMALL, "output": tmp_path / "out", "tokenizer": building.tokenizer()}
    build(REVIEWS, **options, beam_args=["--runner=DirectRunner"])
    assert logging.getLogger().handlers == []


def test_a_dataset_must_be_given() -> None:
    with pytest.raises(ConfigError, match="no dataset"):
        build(output="out", tokenizer="t")


def test_rows_are_decoded(tmp_path: Path) -> None:
    seen = inspect(reviews(), split="train", rows=3)
    assert [row.record for row in seen.rows] == [0, 1, 2]
    assert seen.manifest == building.read_manifest(reviews())
    assert len(inspect(reviews()).rows) == 4


def test_an_export_lists_its_files(tmp_path: Path) -> None:
    made = export(reviews(), to="tfrecord", output=tmp_path / "out", split="train", rename={"label": "y"})
    assert (made.shards_made, made.shards_kept) == (len(made.shards), 0)


def test_damage_is_in_the_result(tmp_path: Path) -> None:
    root = Path(shutil.copytree(reviews(), tmp_path / "out"))
    assert verify(root).damaged == ()
    (root / "dataset_info.json").write_text("{}")
    verified = verify(root)
    assert [damage.file for damage in verified.damaged] == ["dataset_info.json"]


@pytest.mark.parametrize(
    ("options", "cause", "remedy"),
    [
        ({"max_lenght": 3}, "no option 'max_lenght'", "did you mean 'max_length'?"),
        ({"label": "x"}, "no option 'label'", "did you mean 'label_column'?"),
        ({"text": "x"}, "no option 'text'", "did you mean 'text_column'?"),
        ({"json": True}, "no option 'json'", "--help"),
        ({"layout": "padd"}, "--layout 'padd', expected one of pad, ", "choose"),
        ({"max_length": 0}, "--max-length 0, expected at least 1", "128"),
        ({"max_length": "many"}, "max_length='many', expected a whole number", "leave max_length out"),
        ({"limit": 1.5}, "limit=1.5, expected a whole number", ""),
        ({"max_error_rate": "some"}, "max_error_rate='some', expected a number", ""),
        ({"shuffle": "no"}, "shuffle='no', expected True or False", ""),
        ({"seed": True}, "seed=True, expected a whole number", ""),
        ({"text_column": {"a": 1}}, "text_column={'a': 1}, expected a text", ""),
        ({"beam_args": "--x"}, "beam_args='--x', expected a list of arguments", ""),
        ({"tokenizer": None}, "tokenizer=None, expected a tokenizer", ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_wrong_options_say_what_to_do(tmp_path: Path, options: dict[str, Any], cause: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(REVIEWS, **{"output": tmp_path / "out", "tokenizer": building.tokenizer(), **options})
    assert cause in raised.value.cause
    assert remedy in raised.value.remedy
    assert not list(tmp_path.iterdir())


def test_what_is_no_dataset_is_an_error_of_ours(tmp_path: Path) -> None:
    for function in (inspect, verify):
        with pytest.raises(ManifestError, match="no such folder"):
            function(tmp_path / "none")


@pytest.mark.parametrize(("other", "name"), [("no_shuffle", "shuffle"), ("overwrite", "resume")])
def test_other_names_of_an_option_are_keywords_too(other: str, name: str) -> None:
    options = {"output": "o", "tokenizer": "t"}
    assert python_options.parsed(["d"], {**options, other: True}) == python_options.parsed(
        ["d"], {**options, name: False}
    )
