"""The table of layouts in docs/how-to: each command runs on the bundled examples, and makes the features listed."""

import functools
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from pipelines.prepare.options.layout_config import LayoutName
from tests import building
from tests.building import REPOSITORY


@functools.cache
def rows() -> list[tuple[str, str, str]]:
    """(layout, features, arguments) of each row of the table."""
    table = (
        (REPOSITORY / "docs" / "how-to" / "layouts" / "index.md")
        .read_text(encoding="utf-8")
        .partition("## Every layout")[2]
        .partition("\n\n`token")[0]
    )
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")
    ]
    return [(layout, features, arguments.strip("`")) for layout, _, features, arguments in cells]


def test_every_layout_has_a_row() -> None:
    named = {word.strip("`") for layout, _, _ in rows() for word in layout.split()[:1]}
    assert named == set(get_args(LayoutName))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(rows())))
def test_the_command_makes_the_features_that_stand_beside_it(number: int, tmp_path: Path) -> None:
    _, features, arguments = rows()[number]
    source, *options = shlex.split(arguments)
    example = Path(source).name
    vocabulary = building.tokenizer_for(example)
    outcome = building.command(
        "build", REPOSITORY / source, *options, "--tokenizer", vocabulary, "--output", tmp_path / "out"
    )
    assert outcome.status == 0, outcome.err
    sizes = {"L": options[options.index("--max-length") + 1]}
    if "--target-length" in options:
        sizes["T"] = options[options.index("--target-length") + 1]
    if "--bucket-lengths" in options:  # the row before has each length
        splits = building.read_manifest(tmp_path / "out").splits.values()
        made = {shard.length for split in splits for shard in split.shards}
        assert sorted(map(str, made), key=int) == options[options.index("--bucket-lengths") + 1].split(",")
        return
    promised = {
        name: tuple(int(sizes[size]) for size in shape) for name, shape in re.findall(r"`(\w+) \[(\w?)\]`", features)
    }
    found = {feature.name: feature.shape for feature in building.read_manifest(tmp_path / "out").schema.features}
    assert found == promised
