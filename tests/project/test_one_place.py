"""Each kind of thing has one table; pages, schemas, settings and test cases that name its entries name all of them.

A test here compares one table with every other place, and lists all that is missing in one message.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import get_args

import pytest

from pipelines.configs import typed_options
from pipelines.option_fields import declared, values_of
from pipelines.prepare.export.export_settings import ExportFormat
from pipelines.prepare.export.exporting import WRITERS
from pipelines.prepare.launch import doctor
from pipelines.prepare.layouts import LAYOUTS, inputs_of
from pipelines.prepare.options.addresses import ADDRESS, STORES
from pipelines.prepare.options.config import EngineName, LayoutConfig, SourceConfig
from pipelines.prepare.options.layout_config import LayoutName
from pipelines.prepare.options.source_config import CHATS
from pipelines.prepare.runners import shipping
from pipelines.prepare.sources.columns import chats, column_planning
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Purpose
from pipelines.prepare.storage import object_storage
from pipelines.prepare.tokenize.engines.choice import FAST_ENGINES
from pipelines.train.config import Task, TrainConfig
from pipelines.train.models import backbones, fit
from pipelines.train.models.families import FAMILIES
from pipelines.train.models.settings import TYPES
from pipelines.train.tasks import TASKS
from scripts import check_clients, make_format_data
from tests.building import REPOSITORY
from tests.prepare.layouts import test_chat_forms, test_contract
from tests.project import test_golden_bytes
from tests.support import checkpoints
from tfrecord_io import objectives
from tfrecord_io.format.ledger import Shards
from tfrecord_io.manifest import Ledger, Shard

COMPARED = "tests/train/compare_backends.py"
COMPARED_LOGITS = "scripts/clients/transformers_checkpoints.py"
HELP = "pipelines/train/config.py"
# Their remedies name families from scratch.
OF_PACKED_ROWS, OF_EXPORTS = "pipelines/train/models/backbones.py", "pipelines/train/export/exporting.py"
PACKED, PAGE_OF_PACK = "tests/train/test_packed_rows.py", "docs/how-to/layouts/pack.md"
ADVICE = "pipelines/prepare/options/suggestions.py"


def text(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def quoted(path: str) -> set[str]:
    return set(re.findall(r"`([\w-]+)`", text(path)))


def in_tables(path: str) -> set[str]:
    """The words in the cells of a page's tables; also gpt2 for GPT-2."""
    cells = [cell.split(",") for line in text(path).splitlines() if line.startswith("|") for cell in line.split("|")]
    words = {word.strip().lower() for cell in cells for word in cell}
    return words | {re.sub("[ -]", "", word) for word in words}


def part(path: str, start: str, end: str) -> str:
    match = re.search(re.escape(start) + "(.*?)" + re.escape(end), text(path), flags=re.DOTALL)
    assert match, f"{path} has no text from {start!r} to {end!r}"
    return match[1]


def missing(names: Iterable[str], places: Mapping[str, Iterable[str]], *, exactly: Iterable[str] = ()) -> list[str]:
    lacking = [f"{place} lacks {name}" for place, known in places.items() for name in sorted({*names} - {*known})]
    return lacking + [f"{place} has {name}" for place in exactly for name in sorted({*places[place]} - {*names})]


def nothing_lacks(*lacking: list[str]) -> None:
    """Fail with a line for each missing name; pytest would cut a long list."""
    lines = [line for some in lacking for line in some]
    assert not lines, "\n".join(["", *lines])


def enum(*path: str) -> list[str]:
    value = json.loads(text("docs/manifest.schema.json"))
    for name in path:
        value = value[name]
    return list(value["enum"])


def test_every_layout_is_in_every_place() -> None:
    options = [case.options for case in test_contract.CASES.values()]
    format_data = [options.split() for _, _, options in make_format_data.DATASETS.values()]
    places: dict[str, Iterable[str]] = {
        "LayoutName": get_args(LayoutName),
        "docs/manifest.schema.json": enum("properties", "layout", "properties", "name"),
        "tests/prepare/layouts/test_contract.py": {str(case_options.get("layout", "pad")) for case_options in options},
        "tests/project/test_golden_bytes.py": {case.get("layout", "pad") for case in test_golden_bytes.CASES.values()},
        "scripts/make_format_data.py": {"pad", *(words[1] for words in format_data if words[0] == "--layout")},
        "docs/how-to/layouts/": {path.stem for path in (REPOSITORY / "docs/how-to/layouts").iterdir()},
        "mkdocs.yml": re.findall(r"how-to/layouts/(\w+)\.md", text("mkdocs.yml")),
        **{page: quoted(page) for page in ("docs/how-to/layouts/index.md", "docs/how-to/read.md", "docs/format.md")},
        **{page: quoted(page) for page in ("docs/how-to/export.md", "docs/reference/training.md", "README.md")},
    }
    reasons = {reason for case in test_contract.CASES.values() for _, reason in case.unusable.values()}
    nothing_lacks(
        missing(LAYOUTS, places, exactly=["LayoutName", "docs/manifest.schema.json"]),
        missing(reasons, {"docs/format.md": quoted("docs/format.md")}),
    )


def test_every_option_of_a_layout_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs/how-to/layouts").glob("*.md"))
    flags = [option.flag for config in (LayoutConfig, SourceConfig) for option in declared(config) if option.taken_with]
    nothing_lacks(missing(flags, {"docs/how-to/layouts/": re.findall(r"--[\w-]+", pages)}))


def test_every_column_of_a_layout_is_one_of_its_inputs() -> None:
    lacking = []
    for option in declared(SourceConfig):
        for layout in option.taken_with:
            case = next(case for case in test_contract.CASES.values() if case.options.get("layout", "pad") == layout)
            columns = values_of(SourceConfig, typed_options(case.options)) | {option.field: "given"}
            inputs = inputs_of(LayoutConfig(name=layout), SourceConfig(dataset="d", **columns))  # type: ignore[arg-type]
            lacking += missing(
                ["given"], {f"`inputs` of {layout} in pipelines/prepare/layouts with {option.flag}": inputs.names}
            )
    nothing_lacks(lacking)


def test_advice_against_padding_knows_every_option_that_pack_refuses() -> None:
    options = [o for o in declared(LayoutConfig) if "pad" in o.taken_with and "pack" not in o.taken_with]
    known = re.findall(r'options(?:\.get\(|\[)"(\w+)"', text(ADVICE))
    nothing_lacks(missing([option.key or option.field for option in options], {ADVICE: known}))


def test_every_form_of_chats_is_in_every_place() -> None:
    columns = {name for needed in CHATS.values() for name in needed}
    purposes = {chats.PURPOSES.get(name, name) for name in chats.CANDIDATES} | {*get_args(Purpose)}
    reasons = [f"{purpose}_null" for purpose in purposes - {*chats.OPTIONAL}]
    flags = [option.flag for option in declared(SourceConfig)]
    named = ColumnPlan(texts=(), nested=dict.fromkeys(get_args(Purpose), "")).flags.split(", ")
    nothing_lacks(
        missing(CHATS, {"tests/prepare/layouts/test_chat_forms.py": test_chat_forms.FORMS}),
        missing(columns, {"docs/how-to/layouts/chat.md": quoted("docs/how-to/layouts/chat.md")}),
        missing(purposes, {"extraction.Purpose": get_args(Purpose), "_NESTED": column_planning._NESTED}),
        missing(reasons, {"docs/format.md": quoted("docs/format.md")}),
        missing(named, {"SourceConfig (see ColumnPlan.flags)": flags}),
    )


def test_every_field_of_a_shard_is_in_every_place() -> None:
    names, columns = ({field.name for field in dataclasses.fields(kind)} for kind in (Shard, Shards))
    names |= {field.name for field in dataclasses.fields(Ledger)}
    schema = json.loads(text("docs/manifest.schema.json"))["$defs"]["shards"]["properties"]
    places = {"ledger.Shards": columns, "docs/manifest.schema.json": schema, "docs/format.md": quoted("docs/format.md")}
    nothing_lacks(missing(names - {"ledger"}, places, exactly=["ledger.Shards", "docs/manifest.schema.json"]))


def test_every_export_is_in_every_place() -> None:
    pages = ("docs/how-to/export.md", "README.md")
    places: dict[str, Iterable[str]] = {"ExportFormat": get_args(ExportFormat)}
    places |= {page: re.findall(r"--to (\w[\w-]*)", text(page)) for page in pages}
    clients = "scripts/check_clients.py"
    places[clients] = re.findall(r'_export\(work, [\w"]+, "([\w-]+)"', text(clients))
    nothing_lacks(missing(WRITERS, places, exactly=["ExportFormat"]))


def test_every_client_is_in_every_place() -> None:
    sections = re.findall("^## (.+)", text("docs/reference/clients.md"), flags=re.MULTILINE)
    clients = check_clients.CLIENTS.items()
    programs = [path.name for path in (REPOSITORY / "scripts/clients").glob("*.py")]
    imported = ("__init__.py", "expected.py")
    nothing_lacks(
        missing([name for name, _ in clients], {"docs/reference/clients.md": sections}),
        missing({*programs} - {*imported}, {"CLIENTS": {client.program for _, client in clients}}),
    )


def test_every_objective_is_in_every_place() -> None:
    page, helpers = "docs/how-to/read.md", {"compile_args", "segment_attention_mask"}
    functions = {name for name in objectives.__all__ if name.islower()} - helpers
    nothing_lacks(missing(functions, {page: re.findall(r"`(\w+)\(\)`", text(page))}))


def test_every_task_is_in_every_place() -> None:
    places: dict[str, Iterable[str]] = {
        "config.Task": get_args(Task),
        "docs/reference/training.md": re.findall(r"^\| `([\w-]+)`", text("docs/reference/training.md"), re.M),
        COMPARED: {"classify", *re.findall(r'"task": "([\w-]+)"', text(COMPARED))},
    }
    predicted = [name for name, kind in TASKS.items() if kind.predictor]
    # Another number of labels gives weights of other shapes.
    options = {option.field for option in declared(TrainConfig) if option.group == "Task and model"} - {"num_labels"}
    identity = {*TrainConfig(data="d", task="clm", model="m").identity()}
    identity |= {*re.findall(r'"(\w+)": config\.\1', text("pipelines/train/setup.py"))}
    page = "docs/how-to/predict-and-export.md"
    sentence = part(page, "The format `transformers` takes", ". ")
    exported = [
        name
        for name, kind in TASKS.items()
        if kind.auto_class == "CausalLM" or (kind.auto_class and kind.backbone != "decoder")
    ]
    nothing_lacks(
        missing(TASKS, places, exactly=["config.Task"]),
        missing(predicted, {page: quoted(page)}),
        missing(exported, {f"{page}, the format transformers": re.findall(r"`([\w-]+)`", sentence)}),
        missing(options, {"TrainConfig.identity (or setup.identity)": identity}),
    )


def test_every_model_family_is_in_every_place() -> None:
    scratch = [name for name, family in FAMILIES.items() if family.scratch]
    pages, remedies = ("docs/reference/training.md", "docs/how-to/train.md"), (OF_PACKED_ROWS, OF_EXPORTS)
    with_sizes = {path: re.findall(r"(\w+)-SIZE", text(path)) for path in (*pages, *remedies)}
    places: dict[str, Iterable[str]] = {page: with_sizes[page] for page in pages}
    places["tests/train/test_adamw.py"] = re.findall(r'"(\w+)-tiny"', text("tests/train/test_adamw.py"))
    places[COMPARED] = re.findall(r'"(\w+)-tiny"', text(COMPARED))
    places[f"{HELP}, --model"] = re.findall(r"(\w+)-(?=,| or|SIZE)", text(HELP))
    of_types: dict[str, Iterable[str]] = {
        "tests/support/checkpoints.py": checkpoints.CONFIGS,
        COMPARED_LOGITS: re.findall(r'"([\w-]+)"', text(COMPARED_LOGITS)),
        "docs/reference/training.md": in_tables("docs/reference/training.md"),
    }
    exported = [name for name, family in FAMILIES.items() if family.causal_class]
    page = "docs/how-to/predict-and-export.md"
    packed = [name for name in scratch if FAMILIES[name].keeps_apart]
    paragraphs = {OF_PACKED_ROWS: text(OF_PACKED_ROWS), PAGE_OF_PACK: text(PAGE_OF_PACK)}
    paragraphs[f"{pages[0]}, Packed rows"] = part(pages[0], "**Packed rows.**", "\n\n")
    kept_apart = {family.backbone for family in FAMILIES.values() if family.keeps_apart}
    rotary = [name for name, family in FAMILIES.items() if family.rope]
    nothing_lacks(
        missing(scratch, places),
        missing(TYPES, of_types),
        missing(rotary, {"fit._ROTARY": [name for name in FAMILIES if fit._ROTARY.search(name)]}),
        missing({*FAMILIES} - {*scratch}, {"settings.TYPES": TYPES}),
        missing(exported, {page: in_tables(page)}),
        missing(packed, {place: re.findall(r"(\w+)-SIZE", words) for place, words in paragraphs.items()}),
        missing(kept_apart, {PACKED: re.findall(r'"(\w+Backbone)"', text(PACKED))}),
        missing({*exported} & {*scratch}, {OF_EXPORTS: with_sizes[OF_EXPORTS]}),
    )


def test_every_size_of_a_model_is_in_every_place() -> None:
    first, *_, last = sizes = list(backbones._SIZES)
    pages = ("docs/reference/training.md", "docs/how-to/train.md")
    nothing_lacks(
        missing([", ".join(sizes)], {page: re.findall(r"tiny(?:, \w+)+", text(page)) for page in pages}),
        missing([f"{first} to {last}"], {f"{HELP}, --model": re.findall(r"\w+ to \w+", text(HELP))}),
    )


def test_every_engine_is_in_every_place() -> None:
    places: dict[str, Iterable[str]] = {
        "EngineName": {*get_args(EngineName)} - {"auto"},
        "docs/explanation/engines.md": quoted("docs/explanation/engines.md"),
    }
    nothing_lacks(missing(["hf", *FAST_ENGINES], places, exactly=["EngineName"]))


class Extras(ast.NodeVisitor):
    """The requirements that setup.py names, by its constants and by the arguments of `setup`. `of`: by these alone."""

    def __init__(self, *, of: Iterable[str] = ()) -> None:
        self.names: set[str] = set()
        for node in ast.parse(text("setup.py")).body:
            if not of or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in of):
                self.visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and (match := re.match(r"([\w.-]+)(?:\[\w+\])?>=", node.value)):
            self.names.add(match[1])


def test_every_package_for_workers_is_in_every_place() -> None:
    dockerfile = text("scripts/dataflow_worker.Dockerfile").replace(".", "-")
    sent = [*shipping.INSTALLED, *shipping.IMPORTED]
    places = {"scripts/dataflow_worker.Dockerfile": [name for name in sent if name in dockerfile]}
    optional = Extras(of=("ENGINES", "CORPUS", "ARRAYRECORD")).names
    nothing_lacks(missing(sent, places), missing(optional, {"shipping.INSTALLED": shipping.INSTALLED}))


@pytest.mark.parametrize("package", doctor.PACKAGES)
def test_every_package_is_one_that_setup_py_installs_or_brings_along(package: str) -> None:
    brought = {"protobuf": "apache-beam", "tiktoken": "transformers"}
    assert brought.get(package, package) in Extras().names


def test_every_storage_is_in_every_place() -> None:
    pages = [
        f"docs/{page}.md" for page in ("how-to/cloud-storage", "how-to/dataflow", "design", "explanation/security")
    ]
    others = part(pages[0], "**Other stores**", "- **")
    drawing = "pipelines/prepare/storage/__init__.py"
    local = "tests/project/test_rooms.py"
    nothing_lacks(
        missing(ADDRESS.split(" or "), {page: re.findall(r"\w+://", text(page)) for page in pages}),
        [f"{pages[0]}, Other stores, has {scheme}://" for scheme in STORES if f"{scheme}://" in others],
        missing(STORES.values(), {drawing: re.findall(r"─ (\w+) ", text(drawing))}),
        missing(STORES.values(), {local: re.findall(r"'(\w+)' in name", text(local))}),
    )


@pytest.mark.parametrize("name", sorted({*STORES.values()}))
def test_every_storage_has_the_functions_of_one_that_fsspec_opens_and_those_of_a_bucket(name: str) -> None:
    store = importlib.import_module(f"pipelines.prepare.storage.{name}")
    for function in ("open_fs", "info", "entries", "write", "delete", "delete_files"):
        assert inspect.signature(getattr(store, function)) == inspect.signature(getattr(object_storage, function)), (
            function
        )
    for_buckets = ("versions", "pinned", "require_bucket", "explanation", "checks", "forget")
    assert [function for function in for_buckets if not hasattr(store, function)] == []
