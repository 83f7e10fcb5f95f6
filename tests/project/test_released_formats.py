"""What an earlier release has written is read, verified, traced and appended to by this one."""

import json
import shutil
from pathlib import Path

import pytest

from scripts import make_format_data
from tests import building

FOLDER = make_format_data.FOLDER
DATASETS = sorted(make_format_data.DATASETS)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder of the format's data, as anybody who appends has it: a source that they may change."""
    shutil.copytree(FOLDER, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("name", DATASETS)
def test_its_records_have_the_values_that_were_written(name: str) -> None:
    written = json.loads((FOLDER / "digests.json").read_text())
    assert make_format_data.digests(FOLDER / name) == written[name]


@pytest.mark.parametrize("name", DATASETS)
def test_it_verifies_and_its_records_lead_to_their_rows(name: str) -> None:
    outcome = building.command("verify", FOLDER / name)
    assert outcome.status == 0, outcome.err
    example = make_format_data.DATASETS[name][0]
    place = ["--split", "train", "--shard", 0, "--record", 0, "--source", FOLDER / "sources" / example]
    outcome = building.command("trace", FOLDER / name, *place, "--json")
    assert outcome.status == 0, outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_rows_are_appended_to_it(copied: Path, name: str) -> None:
    example = make_format_data.DATASETS[name][0]
    source = copied / "sources" / example
    shutil.copy(source / "train.jsonl", source / "train-1.jsonl")
    before = building.read_manifest(copied / name)
    arguments = make_format_data.arguments(name, sources=copied / "sources", output=copied / name)
    outcome = building.command(*arguments, "--append")
    assert outcome.status == 0, outcome.err
    after = building.read_manifest(copied / name)
    assert after.splits["train"].shards[: len(before.splits["train"].shards)] == before.splits["train"].shards
    assert after.splits["train"].ledger.rows_in == 2 * before.splits["train"].ledger.rows_in
