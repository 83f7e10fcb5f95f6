"""Messages write one thing in the singular."""

import re

import pytest

from tests.building import REPOSITORY
from tfrecord_io import shown

# A number of things without `shown.some`. Tokens of a row, bytes of a limit and positions are never one.
PLURAL = re.compile(
    r"(\}|%s|%d) (more )?(rows|shards|files|examples|records|texts|duplicates|characters|words|documents|workers|steps"
    r"|columns|lines|splits|tasks|datasets|replicas|hosts)\b(?!/| if )"
)
NEVER_ONE = (
    *("its {count:,} files", "its first {count:,} files", "fewer than %s words", "most_rows:,} short rows"),
    *("'name')} rows of", "texts = ", "{len(lines):,} lines", "%s text files", "text columns, expected one"),
    *("{len(datasets)} datasets", "multiple of the {", "{name!r} splits texts", "{splits} examples", "use batches of"),
)


@pytest.mark.parametrize("number", [0, 1, 2, 1_000])
def test_a_number_with_its_noun(number: int) -> None:
    assert shown.some(number, "shard") == f"{number:,} shard{'s' * (number != 1)}"


def test_messages_count_things_with_some() -> None:
    modules = [path for room in ("pipelines", "tfrecord_io") for path in sorted((REPOSITORY / room).rglob("*.py"))]
    lines = [(path.name, line) for path in modules for line in path.read_text(encoding="utf-8").splitlines()]
    wrong = [line for line in lines if PLURAL.search(line[1]) and not any(known in line[1] for known in NEVER_ONE)]
    assert not wrong, "\n".join(map(str, ["", *wrong]))
