"""What an earlier release has written is read, verified, traced and appended to by this one."""

import json
import shutil
from pathlib import Path

import pytest

from scripts import make_format_data
from tests import building

# Of each version of the format.
DATASETS = sorted(path.parent for path in make_format_data.FOLDER.parent.glob("format-*/*/manifest.json"))
of_each = pytest.mark.parametrize("root", DATASETS, ids=lambda root: f"{root.parent.name}-{root.name}")


def test_the_present_version_of_the_format_has_data() -> None:
    assert make_format_data.FOLDER in {root.parent for root in DATASETS}


@of_each
def test_its_records_have_the_values_that_were_written(root: Path) -> None:
    written = json.loads((root.parent / "digests.json").read_text())
    assert make_format_data.digests(root) == written[root.name]


@of_each
def test_it_verifies_and_its_records_lead_to_their_rows(root: Path) -> None:
    outcome = building.command("verify", root)
    assert outcome.status == 0, outcome.err
    source = root.parent / "sources" / make_format_data.DATASETS[root.name][0]
    place = ["--split", "train", "--shard", 0, "--record", 0, "--source", source]
    outcome = building.command("trace", root, *place, "--json")
    assert outcome.status == 0, outcome.err


@pytest.mark.slow
@of_each
def test_rows_are_appended_to_it(root: Path, tmp_path: Path) -> None:
    # In a copy, as anybody who appends has it: with a source that they may change.
    copied = tmp_path / "data"
    shutil.copytree(root.parent, copied)
    source = copied / "sources" / make_format_data.DATASETS[root.name][0]
    shutil.copy(source / "train.jsonl", source / "train-1.jsonl")
    before = building.read_manifest(copied / root.name)
    arguments = make_format_data.arguments(root.name, folder=copied, output=copied / root.name)
    outcome = building.command(*arguments, "--append")
    assert outcome.status == 0, outcome.err
    after = building.read_manifest(copied / root.name)
    assert after.splits["train"].shards[: len(before.splits["train"].shards)] == before.splits["train"].shards
    assert after.splits["train"].ledger.rows_in == 2 * before.splits["train"].ledger.rows_in
