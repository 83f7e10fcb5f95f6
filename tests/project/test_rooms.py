"""Rooms and fences: which folder may import which, read from the source, lazy imports included.

A room imports only rooms that stand above it in its list, and no modules import each other in a circle.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator

import pytest

from tests import building

PREPARE_ROOMS = [
    *("options", "process", "storage", "sources", "dedup", "tokenize", "tokenizer_training", "layouts", "crosscheck"),
    *("plan", "dataset", "shards", "beam", "launch", "audit", "report", "export", "doctor"),
]
SOURCES_ROOMS = ["resolve", "parquet", "ingest", "rows", "columns"]
# Large libraries, and the only rooms that may import them.
LIBRARIES = {
    "apache_beam": {"pipelines.prepare.beam"},
    "datasets": {"pipelines.prepare.sources"},
    # The trainer turns texts to fill in into token ids, and predicted ids back into texts.
    "transformers": {"pipelines.prepare.tokenize", "pipelines.train.predict.loading"},
    "tokenizers": {"pipelines.prepare.tokenize", "pipelines.prepare.tokenizer_training"},
    "click": {"pipelines.cli", "pipelines.terminal", "pipelines.train"},
    "rich": {"pipelines.cli", "pipelines.terminal"},
    "tensorflow": {
        "pipelines.train",
        *(f"tfrecord_io.{name}" for name in ("input_pipeline", "objectives")),
        *(f"tfrecord_io.{name}" for name in ("buckets", "mixture", "reader", "readiness")),
    },
    "keras": {"pipelines.train", "tfrecord_io.objectives.keras_arguments"},
    "jax": {"pipelines.train.on_jax", "pipelines.train.preflight.compile_step"},
    "orbax": {"pipelines.train.on_jax"},
    "numba": {"tfrecord_io.codec", "tfrecord_io.random_access", "pipelines.prepare.tokenize"},
}
_MOST_MODULES = 15


@functools.cache
def _modules() -> dict[str, ast.Module]:
    """Every module of the product by name; a package stands under its own name."""
    found = {}
    for package in ("pipelines", "tfrecord_io"):
        for path in sorted((building.REPOSITORY / package).rglob("*.py")):
            name = ".".join(path.relative_to(building.REPOSITORY).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports name the whole path"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in _modules() else str(node.module)


@functools.cache
def _imports(module: str, *, at_import: bool = False) -> frozenset[str]:
    """What a module imports; with `at_import`, only what is imported as soon as the module is."""
    tree = _modules()[module]
    nodes = list(tree.body) if at_import else list(ast.walk(tree))
    return frozenset(name for node in nodes for name in _names(node)) - {module}


def _is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def _crossings(parent: str, rooms: list[str]) -> list[str]:
    """Imports of a room that stands below, in the list, the one that imports it."""
    found = []
    for at, room in enumerate(rooms):
        for module in [name for name in _modules() if _is_in(name, f"{parent}.{room}")]:
            below = [f"{parent}.{name}" for name in rooms[at + 1 :]]
            found += [f"{module} -> {name}" for name in _imports(module) if any(_is_in(name, each) for each in below)]
    return found


def test_every_folder_is_a_room_of_the_list() -> None:
    for parent, rooms in (("pipelines.prepare", PREPARE_ROOMS), ("pipelines.prepare.sources", SOURCES_ROOMS)):
        depth = parent.count(".") + 1
        there = {name.split(".")[depth] for name in _modules() if name.startswith(f"{parent}.")}
        assert there == set(rooms)


@pytest.mark.parametrize(
    ("parent", "rooms"), [("pipelines.prepare", PREPARE_ROOMS), ("pipelines.prepare.sources", SOURCES_ROOMS)]
)
def test_a_room_imports_only_rooms_above_it(parent: str, rooms: list[str]) -> None:
    assert _crossings(parent, rooms) == []


def test_only_the_launcher_imports_the_beam_room() -> None:
    inside = [name for name in _modules() if not _is_in(name, "pipelines.prepare.beam")]
    users = {name for name in inside if any(_is_in(each, "pipelines.prepare.beam") for each in _imports(name))}
    assert users
    assert all(_is_in(name, "pipelines.prepare.launch") for name in users)


def test_preparing_knows_neither_commands_nor_trainer() -> None:
    shared = ("pipelines.terminal.stages", "pipelines.terminal.option_fields")
    allowed = ("pipelines.prepare", "tfrecord_io", *shared)
    for module in [name for name in _modules() if _is_in(name, "pipelines.prepare")]:
        ours = {name for name in _imports(module) if name.startswith(("pipelines", "tfrecord_io"))}
        assert all(any(_is_in(name, room) for room in allowed) for name in ours), module


def test_the_trainer_and_the_format_do_not_know_the_preparing_side() -> None:
    # How a build permutes rows is the preparing side's own; one module asks it which row a record is.
    allowed = {"pipelines.train.predict.predicting": {"pipelines.prepare.audit.trace"}}
    for module in _modules():
        if _is_in(module, "pipelines.train"):
            crossing = {name for name in _imports(module) if _is_in(name, "pipelines.prepare")}
            assert crossing <= allowed.get(module, set()), module
        if _is_in(module, "tfrecord_io"):
            assert not [name for name in _imports(module) if _is_in(name, "pipelines")], module


def test_the_codec_knows_nothing_of_the_format_but_schemas_and_errors() -> None:
    allowed = ("tfrecord_io.codec", "tfrecord_io.errors", "tfrecord_io.schema")
    for module in [name for name in _modules() if _is_in(name, "tfrecord_io.codec")]:
        ours = {name for name in _imports(module) if name.startswith("tfrecord_io")}
        assert all(any(_is_in(name, each) for each in allowed) for name in ours), module


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_large_libraries_are_imported_only_by_the_rooms_that_are_about_them(library: str) -> None:
    users = {name for name in _modules() if any(_is_in(each, library) for each in _imports(name))}
    assert users, "somebody uses it"
    assert not [name for name in users if not any(_is_in(name, room) for room in LIBRARIES[library])]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: _imports(name) & _modules().keys() for name in _modules()}
    # `import tfrecord_io` gives its modules lazily, for type checkers alone it names them.
    graph["tfrecord_io"] = frozenset()
    graphlib.TopologicalSorter(graph).prepare()


def test_a_room_has_about_a_dozen_modules() -> None:
    rooms: dict[str, int] = {}
    for path in building.REPOSITORY.glob("pipelines/prepare/**/*.py"):
        if path.name != "__init__.py":
            rooms[str(path.parent)] = rooms.get(str(path.parent), 0) + 1
    assert max(rooms.values()) <= _MOST_MODULES, rooms
