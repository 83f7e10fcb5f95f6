"""Each kind of thing has one table; pages, schemas, settings and test cases that name its entries name all of them.

A test here compares one table with every other place, and lists all that is missing in one message.
"""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import get_args

import pytest

from pipelines.prepare.export.export_settings import ExportFormat
from pipelines.prepare.export.exporting import WRITERS
from pipelines.prepare.layouts import LAYOUTS
from pipelines.prepare.options.addresses import STORES
from pipelines.prepare.options.config import EngineName
from pipelines.prepare.options.layout_config import LayoutName
from pipelines.prepare.process.packages import PACKAGES
from pipelines.prepare.storage import object_storage
from pipelines.prepare.tokenize.engines.choice import FAST_ENGINES
from pipelines.train.config import Task
from pipelines.train.models.families import FAMILIES
from pipelines.train.models.settings import TYPES
from pipelines.train.tasks import TASKS
from scripts import make_format_data
from tests.building import REPOSITORY
from tests.prepare.layouts import test_contract
from tests.project import test_golden_bytes

COMPARED = "tests/train/compare_backends.py"


def text(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def quoted(path: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", text(path)))


def missing(names: Iterable[str], places: Mapping[str, Iterable[str]], *, exactly: Iterable[str] = ()) -> list[str]:
    lacking = [f"{place} lacks {name}" for place, found in places.items() for name in sorted({*names} - {*found})]
    return lacking + [f"{place} has {name}" for place in exactly for name in sorted({*places[place]} - {*names})]


def enum(*path: str) -> list[str]:
    value = json.loads(text("docs/manifest.schema.json"))
    for name in path:
        value = value[name]
    return list(value["enum"])


def test_every_layout_is_in_every_place() -> None:
    options = [case.options for case in test_contract.CASES.values()]
    format_data = [options for _, _, options in make_format_data.DATASETS.values()]
    places: dict[str, Iterable[str]] = {
        "LayoutName": get_args(LayoutName),
        "docs/manifest.schema.json": enum("properties", "layout", "properties", "name"),
        "tests/prepare/layouts/test_contract.py": {str(each.get("layout", "pad")) for each in options},
        "tests/project/test_golden_bytes.py": {case.get("layout", "pad") for case in test_golden_bytes.CASES.values()},
        "scripts/make_format_data.py": {"pad", *(each[1] for each in format_data if each[0] == "--layout")},
        "docs/how-to/layouts/": {path.stem for path in (REPOSITORY / "docs/how-to/layouts").iterdir()},
        "mkdocs.yml": re.findall(r"how-to/layouts/(\w+)\.md", text("mkdocs.yml")),
        **{page: quoted(page) for page in ("docs/how-to/layouts/index.md", "docs/how-to/read.md", "docs/format.md")},
        **{page: quoted(page) for page in ("docs/how-to/export.md", "README.md")},
    }
    assert not missing(LAYOUTS, places, exactly=["LayoutName", "docs/manifest.schema.json"])


def test_every_export_is_in_every_place() -> None:
    pages = ("docs/how-to/export.md", "README.md")
    places: dict[str, Iterable[str]] = {"ExportFormat": get_args(ExportFormat)}
    places |= {page: re.findall(r"--to (\w[\w-]*)", text(page)) for page in pages}
    assert not missing(WRITERS, places, exactly=["ExportFormat"])


def test_every_task_is_in_every_place() -> None:
    places: dict[str, Iterable[str]] = {
        "config.Task": get_args(Task),
        "docs/reference/training.md": re.findall(
            r"^\| `(\w+)`", text("docs/reference/training.md"), flags=re.MULTILINE
        ),
        COMPARED: {"classify", *re.findall(r'"task": "(\w+)"', text(COMPARED))},
    }
    assert not missing(TASKS, places, exactly=["config.Task"])
    predicted = [name for name, kind in TASKS.items() if kind.predictor]
    page = "docs/how-to/predict-and-export.md"
    assert not missing(predicted, {page: quoted(page)})


def test_every_model_family_is_in_every_place() -> None:
    scratch = [name for name, family in FAMILIES.items() if family.scratch]
    pages = ("docs/reference/training.md", "docs/how-to/train.md")
    places: dict[str, Iterable[str]] = {page: re.findall(r"(\w+)-SIZE", text(page)) for page in pages}
    places["--model"] = re.findall(r"(\w+)-(?=,| or|SIZE)", text("pipelines/train/config.py"))
    assert not missing(scratch, places)
    assert not missing(TYPES, {"FAMILIES": FAMILIES})
    assert not missing({*FAMILIES} - {*scratch}, {"settings.TYPES": TYPES})


def test_every_engine_is_in_every_place() -> None:
    places: dict[str, Iterable[str]] = {
        "EngineName": {*get_args(EngineName)} - {"auto"},
        "docs/explanation/engines.md": quoted("docs/explanation/engines.md"),
    }
    assert not missing(["hf", *FAST_ENGINES], places, exactly=["EngineName"])


class Extras(ast.NodeVisitor):
    """The requirements that setup.py names, by its constants and by the arguments of `setup`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.visit(ast.parse(text("setup.py")))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (found := re.match(r"([\w.-]+)(?:\[\w+\])?>=", node.value)):
            self.names.add(found[1])


def test_every_package_for_workers_is_in_every_place() -> None:
    dockerfile = text("scripts/dataflow_worker.Dockerfile").replace(".", "-")
    sent = [package.name for package in PACKAGES if package.sent]
    places = {"scripts/dataflow_worker.Dockerfile": [name for name in sent if name in dockerfile]}
    assert not missing(sent, places)


@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_every_package_is_one_that_setup_py_installs_or_brings_along(package: str) -> None:
    brought = {"protobuf": "apache-beam", "tiktoken": "transformers"}
    assert brought.get(package, package) in Extras().names


@pytest.mark.parametrize("name", sorted({*STORES.values()}))
def test_every_storage_has_the_functions_of_one_that_fsspec_opens_and_those_of_a_bucket(name: str) -> None:
    store = importlib.import_module(f"pipelines.prepare.storage.{name}")
    for each in ("open_fs", "info", "entries", "write", "delete", "delete_files"):
        assert inspect.signature(getattr(store, each)) == inspect.signature(getattr(object_storage, each)), each
    for_buckets = ("versions", "pinned", "require_bucket", "explanation", "checks", "forget")
    assert [each for each in for_buckets if not hasattr(store, each)] == []
