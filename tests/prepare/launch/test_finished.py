"""A complete output is used as is; an incomplete one is not."""

import json
import shutil
from pathlib import Path

import pytest

from pipelines.prepare.launch import launcher
from tests import building
from tests.building import REVIEWS, Outcome


def again(output: Path, **changes: object) -> Outcome:
    options = building.options(output, **{"label_column": "label", **changes})
    return building.command("build", REVIEWS, "--json", *options)


def test_nothing_is_read_or_changed_when_all_is_there(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(launcher, "open_job")  # rows are not looked for
    before = building.files(finished)
    outcome = again(finished)
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["shards_made"] == 0
    assert building.files(finished) == before


@pytest.mark.parametrize("gone", ["dataset_info.json", "tokenizer"])
def test_what_lies_beside_the_shards_is_written_again(finished: Path, gone: str) -> None:
    before = building.files(finished)
    path = finished / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    outcome = again(finished)
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["shards_made"] == 0
    assert building.files(finished) == before


@pytest.mark.slow
def test_a_lower_error_rate_than_the_dataset_has_is_refused(tmp_path: Path) -> None:
    rows = [{"text": None if row % 4 == 1 else f"row {row}"} for row in range(20)]
    data = building.source(tmp_path / "data", train=rows)
    options = building.options(tmp_path / "out")
    assert building.command("build", data, *options, "--max-error-rate", 0.25).status == 0
    cause, _ = building.command("build", data, *options, "--max-error-rate", 0.2).error
    assert cause.startswith("5 of 20 rows cannot be used")
    assert building.command("build", data, *options, "--max-error-rate", 0.25).status == 0


def test_a_source_that_has_moved_is_looked_for_at_its_new_place_from_then_on(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": f"row {row}"} for row in range(20)])
    options = building.options(tmp_path / "out", name="rows")
    assert building.command("build", data, *options).status == 0
    outcome = building.command("build", data.rename(tmp_path / "moved"), "--json", *options)
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["shards_made"] == 0
    traced = building.command("trace", tmp_path / "out", "--split", "train", "--shard", 0, "--record", 0)
    assert traced.status == 0, traced.err


@pytest.mark.slow
def test_nothing_is_read_of_a_source_with_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_functions.py").write_text("def same(table):\n    return table\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = building.source(tmp_path / "data", train=[{"text": f"Row {row}"} for row in range(20)])
    options = building.options(tmp_path / "out", map="own_functions:same")
    outcome = building.command("build", data, *options)
    assert outcome.status == 0, outcome.err
    monkeypatch.delattr(launcher, "open_job")  # rows are not looked for
    assert building.command("build", data, *options).status == 0
