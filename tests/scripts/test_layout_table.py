"""The tables of layouts and of objectives in docs/how-to.

Each command of the layouts' table runs on the bundled examples, and makes the features listed. Each objective fits the
layouts beside it.
"""

import dataclasses
import functools
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from pipelines.prepare.options.layout_config import LayoutName
from tests import building
from tests.building import REPOSITORY
from tfrecord_io.errors import ReaderError


@functools.cache
def rows() -> list[tuple[str, str, str]]:
    """(layout, features, arguments) of each row of the table."""
    table = (
        (REPOSITORY / "docs" / "how-to" / "layouts" / "index.md")
        .read_text(encoding="utf-8")
        .partition("## Every layout")[2]
        .partition("\n\n`token")[0]
    )
    cells = [[*map(str.strip, line.strip("|").split("|"))] for line in table.splitlines() if line.startswith("| `")]
    return [(layout, features, arguments.strip("`")) for layout, _, features, arguments in cells]


def test_every_layout_has_a_row() -> None:
    named = {word.strip("`") for layout, _, _ in rows() for word in layout.split()[:1]}
    assert named == set(get_args(LayoutName))


@functools.cache
def built(number: int) -> Path:
    source, *options = shlex.split(rows()[number][2])
    folder = building.new_folder() / "out"
    vocabulary = building.tokenizer_for(Path(source).name)
    outcome = building.command("build", REPOSITORY / source, *options, "--tokenizer", vocabulary, "--output", folder)
    assert outcome.status == 0, outcome.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(rows())))
def test_the_command_makes_the_features_that_stand_beside_it(number: int) -> None:
    _, features, arguments = rows()[number]
    options, manifest = shlex.split(arguments), building.read_manifest(built(number))
    sizes = {"L": options[options.index("--max-length") + 1]}
    if "--target-length" in options:
        sizes["T"] = options[options.index("--target-length") + 1]
    if "--bucket-lengths" in options:  # the row before has each length
        made = {shard.length for split in manifest.splits.values() for shard in split.shards}
        assert sorted(map(str, made), key=int) == options[options.index("--bucket-lengths") + 1].split(",")
        return
    promised = {
        name: tuple(int(sizes[size]) for size in shape) for name, shape in re.findall(r"`(\w+) \[(\w?)\]`", features)
    }
    shapes = {feature.name: feature.shape for feature in manifest.schema.features}
    assert shapes == promised


def objectives_and_layouts() -> list[tuple[str, str]]:
    page = (REPOSITORY / "docs" / "how-to" / "read.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (`\w+\(\)`.*?) \| .* \| (.*) \|$", page, re.M)


@pytest.mark.slow
@pytest.mark.parametrize(("names", "layouts"), objectives_and_layouts())
def test_an_objective_fits_the_layouts_that_stand_beside_it(names: str, layouts: str) -> None:
    from tfrecord_io import objectives

    listed = set(re.findall(r"`(\w+)`", layouts))
    wanted = {*get_args(LayoutName)} - listed if layouts.startswith("all but") else listed
    plain = {layout.strip("`"): number for number, (layout, _, _) in enumerate(rows()) if layout.count(" ") == 0}
    lacking = {}
    for name in re.findall(r"`(\w+)\(\)`", names):
        for layout in wanted:
            manifest = building.read_manifest(built(plain[layout]))
            # The tokenizers of some examples lack a token that an objective needs.
            facts = dataclasses.replace(manifest.tokenizer, mask_id=4, eos_id=3, sentinel_ids=tuple(range(5, 105)))
            try:
                getattr(objectives, name)().bind(dataclasses.replace(manifest, tokenizer=facts))
            except ReaderError as error:
                lacking[name, layout] = error.cause
    assert lacking == {}
