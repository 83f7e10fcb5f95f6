"""A finished dataset of a stranger's, with one field of one of its JSON files changed: every command gives a result or
an error of ours, and touches nothing but the dataset.

    parsers     a thousand changes of each dataset
    commands    a few

Each is a field (of lists the first or the last entry) and a value for it, drawn with a new seed each time: the message
of what fails has it, and in SEED it repeats the failure.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipelines.prepare.dataset import receipts, reservation, source_record
from tests import building
from tests.building import REVIEWS, built
from tests.support.speed import slow_but
from tfrecord_io import manifest
from tfrecord_io.errors import PrepError
from tfrecord_io.format import json_fields

SEED = random.randrange(10**9)
GONE = object()
DEEP = json.loads("[" * 300 + "]" * 300)
VALUES = [
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf"), GONE, "", "x", "../../x", "/etc/x"),
    *("x" * 100_000, "\ud800", "a\0b", [], [[]], [None], {}, {"a": 1}, DEEP),
]
BUILDS: dict[str, dict[str, Any]] = {
    "pad": {"label_column": "label"},
    "pack": {"layout": "pack"},
    "buckets": {"max_length": None, "bucket_lengths": "16,32", "label_column": "label"},
}
PARSED = 1_000
COMMANDS = {"inspect": 20, "trace": 10, "repair": 5}


class Change(NamedTuple):
    file: str
    place: tuple[Any, ...]
    value: Any

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else f"{self.value!r:.60}" if self.value is not DEEP else "deep"
        return f"seed {SEED}: {self.file} {'.'.join(map(str, self.place))} = {value}"

    def applied(self, document: Any) -> bytes:
        """The file with the change; a manifest without its digest, which whoever changes it can make right."""
        changed = copy.deepcopy(document)
        if self.file == "manifest.json" and self.place != ("sha256",):
            del changed["sha256"]
        inside = functools.reduce(lambda inner, key: inner[key], self.place[:-1], changed)
        if self.value is GONE:
            del inside[self.place[-1]]
        else:
            inside[self.place[-1]] = self.value
        return json.dumps(changed).encode()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of each dataset."""
    found = {}
    for name, changes in BUILDS.items():
        root = tmp_path_factory.mktemp(name) / "here" / "out"
        shutil.copytree(built(REVIEWS, **changes), root)
        found[name] = root
    return found


def files_of(root: Path) -> list[str]:
    """Our own JSON files: of the receipts the first."""
    found = [str(path.relative_to(root)) for path in sorted(root.rglob("*.json")) if path.parent.name != "tokenizer"]
    return [name for name in found if "receipt" not in name or "-00000-" in name]


def changes_of(root: Path, file: str) -> Iterator[Change]:
    """Every value in every place."""
    document = json.loads((root / file).read_bytes())
    for place, value in itertools.product(places(document), VALUES):
        yield Change(file, place, value)


def places(content: Any) -> Iterator[tuple[Any, ...]]:
    keys = list(content) if isinstance(content, dict) else []
    if isinstance(content, list) and content:
        keys = sorted({0, len(content) - 1})
    for key in keys:
        yield (key,)
        yield from ((key, *rest) for rest in places(content[key]))


class Placed(NamedTuple):
    """As much of a job as reading a file of its work folder takes."""

    root: str

    def work_path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)


def parser_of(file: str, folder: Path) -> Callable[[bytes], object]:
    """What reads a file of that name."""

    def placed(text: bytes) -> Placed:
        path = folder / ".prep" / "f" / Path(file).name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return Placed(str(path.parent))

    name = Path(file).name.partition("-")[0]
    parsers: dict[str, Callable[[bytes], object]] = {
        "manifest.json": lambda text: manifest.parse(text, place=file),
        "receipt": lambda text: receipts.parse(text, path=file),
        "source.json": lambda text: placed(text) and source_record.read(str(folder), "f"),
        "job.json": lambda text: placed(text) and reservation._own_shards(str(folder)),
    }
    return parsers[name]


@pytest.mark.parametrize("name", slow_but(sorted(BUILDS), "buckets"))
def test_every_parser_takes_a_file_or_refuses_it(roots: dict[str, Path], name: str, tmp_path: Path) -> None:
    root, refused = roots[name], 0
    # The files for TFDS are never parsed, but compared with what the manifest gives.
    documents = {
        file: json.loads((root / file).read_bytes())
        for file in files_of(root)
        if file not in ("dataset_info.json", "features.json")
    }
    every = [change for file in documents for change in changes_of(root, file)]
    for change in random.Random(f"{SEED} {name}").sample(every, PARSED):
        content = change.applied(documents[change.file])
        refused += is_refused(functools.partial(parser_of(change.file, tmp_path), content), change)
    assert refused > PARSED / 3


def is_refused(parse: Callable[[], object], change: Change) -> bool:
    """Whether it raises an error of ours, with a remedy. Fails if it raises another one."""
    try:
        parse()
    except PrepError as error:
        refused = error
    except Exception as error:
        raise AssertionError(change) from error
    else:
        return False
    assert refused.remedy, change
    return True


@pytest.mark.parametrize("command", slow_but(sorted(COMMANDS), "inspect"))
def test_every_command_does_its_work_or_refuses_to(roots: dict[str, Path], command: str) -> None:
    draw = random.Random(f"{SEED} {command}")
    every = [(root, change) for root in roots.values() for file in files_of(root) for change in changes_of(root, file)]
    for root, change in draw.sample(every, COMMANDS[command]):
        attempt(command, root, change)


def attempt(command: str, root: Path, change: Change) -> None:
    """Runs a command on a dataset with a change, and then takes the change back."""
    around = root.parents[1]
    (around / "x").write_bytes(b"outside")
    kept = shutil.copytree(root, around / "kept", dirs_exist_ok=True)
    (root / change.file).write_bytes(change.applied(json.loads((root / change.file).read_bytes())))
    outside = {name: content for name, content in building.files(around).items() if not name.startswith("here/out/")}
    arguments: tuple[object, ...] = (command, root)
    if command == "trace":
        arguments = ("trace", root, "--split=train", "--shard=0", "--record=0")
    elif command == "repair":
        next(root.glob("*-train-*")).unlink()
        (root / "tokenizer" / "tokenizer.json").write_bytes(b"{}")
        arguments = ("verify", root, "--repair")
    try:
        outcome = building.command(*arguments)
        if outcome.status:
            assert outcome.error
    except Exception as error:
        raise AssertionError(change) from error
    finally:
        shutil.rmtree(root)
        kept.rename(root)
    after = {name: content for name, content in building.files(around).items() if not name.startswith("here/out/")}
    assert after == {name: content for name, content in outside.items() if not name.startswith("kept/")}, change


def test_a_dataset_that_names_another_one_changes_nothing_there(roots: dict[str, Path], tmp_path: Path) -> None:
    """Its fingerprint leads out of its own folder, to the tokenizer and the receipts of a dataset beside it."""
    root, other = (Path(shutil.copytree(roots["pad"], tmp_path / name)) for name in ("out", "other"))
    (work,) = (other / ".prep").iterdir()
    (work / "tokenizer" / "tokenizer.json").write_bytes(b"another one")
    for receipt in work.glob("train/receipt-*"):
        receipt.unlink()
    before = building.files(other)
    change = Change("manifest.json", ("fingerprint",), f"../../other/.prep/{work.name}")
    (root / "manifest.json").write_bytes(change.applied(json.loads((root / "manifest.json").read_bytes())))
    next(root.glob("*-train-*")).unlink()
    assert "1 to 128 hex digits" in building.command("verify", root, "--repair").error[0]
    assert building.files(other) == before


def test_numbers_that_are_none_and_too_much_depth_are_refused() -> None:
    numbers = ("1e400", "-1e999", "NaN", "-Infinity")
    for text in (*numbers, "[" * 100_000, "[" * 60 + "]" * 60, '{"a":' * 60 + "1" + "}" * 60):
        with pytest.raises(ValueError, match=r"large|no number|deep|Expecting"):
            json_fields.load(text)
    assert json_fields.load("[" * 50 + "]" * 50)
