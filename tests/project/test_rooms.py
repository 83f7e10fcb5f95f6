"""Rooms and fences: which folder may import which, read from the source, and what a fresh process has imported.

A room imports only rooms that stand above it in its list, and no modules import each other in a circle. The sides of
the format never pull in each other's weight.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def _modules_of(package: str) -> list[str]:
    """Of a package and all that are in it."""
    files = (building.REPOSITORY / package).rglob("*.py")
    return sorted(".".join(path.relative_to(building.REPOSITORY).with_suffix("").parts) for path in files)


PREPARE = _modules_of("pipelines/prepare")
SOURCES = _modules_of("pipelines/prepare/sources")
FORMAT = _modules_of("tfrecord_io")
TRAIN = _modules_of("pipelines/train")
LIGHT_FORMAT = ["errors", "schema", "manifest", "examples", "records"]


_LIST = "\nimport json, sys; print('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"


def imported_by(program: str, *arguments: object) -> set[str]:
    """The top-level modules that a fresh process has imported after running `program`."""
    (found,) = imported_in_turn([program], *arguments)
    return found


def imported_in_turn(programs: list[str], *arguments: object) -> list[set[str]]:
    """As `imported_by`, after each of several programs that one fresh process runs one after another."""
    command = [sys.executable, "-c", _LIST.join([*programs, ""]), *map(str, arguments)]
    ended = subprocess.run(command, env=building.environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    listings = [set(json.loads(line)) for line in ended.stdout.splitlines() if line.startswith('["')]
    assert len(listings) == len(programs)
    return listings


def importing(modules: list[str]) -> set[str]:
    return imported_by(imports(modules))


def imports(modules: list[str]) -> str:
    return "".join(f"import {name.removesuffix('.__init__')}\n" for name in modules)


@pytest.mark.slow
def test_neither_the_prepare_side_nor_a_whole_build_imports_tensorflow(tmp_path: Path) -> None:
    """In one process, since to import Beam takes longer than the rest: what reads sources, then all, then a build."""
    assert {"pipelines.prepare.sources.parquet.row_groups", "pipelines.prepare.sources.resolve.hub"} <= set(SOURCES)
    build = (
        "import sys\n"
        "from pipelines.cli import commands\n"
        "for arguments in (['build', *sys.argv[1:]], ['verify', sys.argv[3]], ['inspect', sys.argv[3]]):\n"
        "    try:\n"
        "        commands.main.main(arguments)\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
    )
    arguments = building.options(tmp_path / "out", label_column="label", workers=2)
    programs = [imports(SOURCES), imports([*PREPARE, "pipelines.cli.commands"]), build]
    sources, prepare, built = imported_in_turn(programs, building.REVIEWS, *arguments)
    # `datasets` is imported when a dataset is opened.
    assert "pyarrow" in sources
    assert not sources & {"apache_beam", "datasets", "tensorflow", "keras", "transformers"}
    assert {"apache_beam", "pyarrow"} <= prepare, "the fence is looked at in earnest"
    assert (tmp_path / "out" / "manifest.json").exists()
    assert not (prepare | built) & {"tensorflow", "keras", "tensorflow_datasets", "torch", "jax"}


def test_local_files_need_no_module_of_remote_storage(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pipelines.prepare import storage\n"
        "from pipelines.prepare.storage import local_storage\n"
        "path = storage.join(sys.argv[1], 'deep', 'file')\n"
        "with local_storage.held(sys.argv[1], work_folder='.prep'):\n"
        "    storage.write_bytes(path, b'x', replacing=storage.generations([path]).get(path))\n"
        "assert (storage.read_bytes(path), storage.size(path), storage.exists(path)) == (b'x', 1, True)\n"
        "assert storage.list_files(sys.argv[1]) == ['deep/file']\n"
        "storage.delete(path)\n"
        "ours = [name for name in sys.modules if name.startswith('pipelines.prepare.storage.')]\n"
        "assert not [name for name in ours if 'gcs' in name or 'object_storage' in name], ours\n"
        "assert not [name for name in sys.modules if name.startswith(('google.cloud.storage', 'google.api_core'))]\n"
    )
    assert not imported_by(program, tmp_path / "out") & {"gcsfs", "fsspec", "requests", "aiohttp"}


def test_the_trainers_command_line_imports_nothing_heavy() -> None:
    assert not importing(["pipelines.train.cli"]) & {"tensorflow", "keras", "apache_beam", "datasets", "transformers"}


@pytest.mark.parametrize("module", LIGHT_FORMAT)
def test_the_format_without_its_reader_needs_no_tensorflow(module: str) -> None:
    found = importing([f"tfrecord_io.{module}"])
    assert not found & {"tensorflow", "keras", "apache_beam", "datasets", "transformers", "pyarrow", "pipelines"}


@pytest.mark.parametrize("module", ["errors", "schema", "manifest"])
def test_what_describes_the_format_needs_the_standard_library_only(module: str) -> None:
    third_party = importing([f"tfrecord_io.{module}"]) - set(sys.stdlib_module_names) - {"tfrecord_io"}
    assert not third_party & {"numpy", "numba", "click", "rich", "fsspec"}


def test_what_renders_conversations_starts_fast() -> None:
    found = importing(["pipelines.prepare.tokenize.chat.renderer"])
    assert {"jinja2", "pyarrow"} <= found
    assert not found & {"transformers", "tokenizers", "datasets", "numba", "apache_beam", "fsspec", "pandas"}


def test_the_command_line_imports_nothing_heavy() -> None:
    found = importing(["pipelines.cli.commands"])
    assert "click" in found
    heavy = {"numpy", "numba", "pyarrow", "apache_beam", "datasets", "transformers", "fsspec", "rich", "tensorflow"}
    assert not found & heavy


def test_every_module_is_looked_at() -> None:
    assert {
        "pipelines.prepare.beam.pipeline",
        "pipelines.prepare.shards.shard_writer",
        "pipelines.prepare.__init__",
    } <= set(PREPARE)
    assert {f"tfrecord_io.{name}" for name in [*LIGHT_FORMAT, "reader", "objectives.__init__"]} <= set(FORMAT)


@pytest.mark.slow
def test_training_and_evaluation_need_tensorflow_and_numpy_alone() -> None:
    """A training host may have nothing else: the package is installed there without its dependencies."""
    program = (
        "import sys\n"
        "for name in ('numba', 'pyarrow', 'datasets', 'transformers', 'tokenizers', 'apache_beam', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from tfrecord_io import objectives, reader\n"
        "data = reader.open(sys.argv[1])\n"
        "for split, options in (('train', {'objective': objectives.masked_lm(0.15)}), ('validation', {})):\n"
        "    next(iter(data.dataset(split, global_batch_size=8, **options)))\n"
        "for name in [name for name in sys.modules if sys.modules[name] is None]:\n"
        "    del sys.modules[name]"
    )
    assert "tensorflow" in imported_by(program, building.reviews())
