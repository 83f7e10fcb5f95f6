"""Messages of a build write one thing in the singular."""

import re
from pathlib import Path

import pytest

from tests.building import REPOSITORY
from tfrecord_io import shown

ROOMS = ("cli", "terminal", "prepare/launch", "prepare/report")
MODULES = sorted(path for room in ROOMS for path in (REPOSITORY / "pipelines" / room).glob("*.py"))
# A number of things without `shown.some`. Files of a thousand and more are no case.
PLURAL = re.compile(r"(\}|%s|%d) (more )?(rows|shards|files|examples|records|texts|duplicates|characters)\b(?!/)")
NEVER_ONE = ("its {count:,} files", "its first {count:,} files")


@pytest.mark.parametrize("number", [0, 1, 2, 1_000])
def test_a_number_with_its_noun(number: int) -> None:
    assert shown.some(number, "shard") == f"{number:,} shard{'s' * (number != 1)}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY / "pipelines")))
def test_messages_count_things_with_some(module: Path) -> None:
    lines = module.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if PLURAL.search(line) and not any(each in line for each in NEVER_ONE)] == []
