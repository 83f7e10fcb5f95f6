"""Rooms and fences: allowed imports, checked in the source, including lazy imports, and in fresh processes.

A room imports only rooms above it in its list, and there are no import cycles. The sides of the format never import
each other's dependencies.
"""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import building
from tests.support import sources
from tests.support.imported import imported_by, imported_in_turn

PREPARE_ROOMS = [
    *("options", "process", "storage", "runners", "sources", "dedup", "tokenize", "tokenizer_training", "layouts"),
    *("plan", "dataset", "shards", "launch", "audit", "report", "export"),
]
SOURCES_ROOMS = ["resolve", "parquet", "ingest", "rows", "columns"]
# Large libraries, and the only rooms that may import them.
LIBRARIES = {
    "apache_beam": {f"pipelines.prepare.runners.{name}" for name in ("on_beam", "beam_options", "dataflow")},
    "datasets": {"pipelines.prepare.sources"},
    # The trainer turns texts to fill in into token ids, predicted ids back into texts, and reads config.json.
    "transformers": {
        "pipelines.prepare.tokenize",
        "pipelines.train.predict.loading",
        "pipelines.train.models.settings",
    },
    "tokenizers": {"pipelines.prepare.tokenize", "pipelines.prepare.tokenizer_training"},
    "click": {"pipelines.cli", "pipelines.terminal", "pipelines.train"},
    "rich": {"pipelines.cli", "pipelines.terminal", "pipelines.prepare.report"},
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
_READING_ROOMS = ("input_pipeline", "mixing", "objectives", "ordering", "random_access")
_MOST_MODULES = 15


@functools.cache
def _modules() -> dict[str, ast.Module]:
    """Every module of the product by name; a package stands under its own name."""
    by_name = {}
    for package in ("pipelines", "prep_tfrecords", "tfrecord_io"):
        for path, module in sources.modules(package).items():
            name = path.removesuffix(".py").replace("/", ".")
            by_name[name.removesuffix(".__init__")] = module
    return by_name


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports name the whole path"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in _modules() else str(node.module)


@functools.cache
def _imports(module: str) -> frozenset[str]:
    return frozenset(name for node in ast.walk(_modules()[module]) for name in _names(node)) - {module}


def _of(room: str) -> list[str]:
    return [name for name in _modules() if _is_in(name, room)]


def _is_in(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


@pytest.mark.parametrize(
    ("parent", "rooms"), [("pipelines.prepare", PREPARE_ROOMS), ("pipelines.prepare.sources", SOURCES_ROOMS)]
)
def test_a_room_imports_only_rooms_above_it_and_has_about_a_dozen_modules(parent: str, rooms: list[str]) -> None:
    depth = parent.count(".") + 1
    assert {name.split(".")[depth] for name in _of(parent) if name != parent} == set(rooms)
    for at, room in enumerate(rooms):
        below = [f"{parent}.{name}" for name in rooms[at + 1 :]]
        for module in _of(f"{parent}.{room}"):
            assert not [name for name in _imports(module) if any(_is_in(name, lower) for lower in below)], module
    for folder in building.REPOSITORY.glob("pipelines/prepare/**/"):
        assert len(list(folder.glob("[!_]*.py"))) <= _MOST_MODULES


def test_a_runner_is_chosen_before_beam_is_imported() -> None:
    """Other rooms know none of the modules that import Beam, so they don't know which runner they use."""
    room = "pipelines.prepare.runners"
    users = {name for name in _modules() if LIBRARIES["apache_beam"] & _imports(name)}
    assert users == {room, f"{room}.on_beam", f"{room}.beam_options"}


@pytest.mark.parametrize(
    ("room", "outside", "allowed"),
    [
        ("pipelines.prepare", "pipelines", ("filters", "prepare", "stages", "option_fields")),
        *((module, "pipelines.cli", ()) for module in ("pipelines.configs", "pipelines.python_api")),
        *((module, "pipelines.cli", ()) for module in ("pipelines.python_options", "pipelines.terminal")),
        # How a build permutes rows is the preparing side's own; one module asks it which row a record is.
        ("pipelines.train", "pipelines.prepare", ("audit.trace",)),
        ("tfrecord_io", "pipelines", ()),
        ("tfrecord_io.codec", "tfrecord_io", ("codec", "errors", "schema", "shown")),
        # The types of a manifest come from `tfrecord_io.manifest`.
        *(
            (room, "tfrecord_io.format", ("json_fields", "record_index"))
            for room in ("pipelines", *(f"tfrecord_io.{name}" for name in _READING_ROOMS))
        ),
    ],
)
def test_a_side_knows_nothing_of_another_but_what_is_named(room: str, outside: str, allowed: tuple[str, ...]) -> None:
    for module in _of(room):
        known = [name for name in _imports(module) if _is_in(name, outside)]
        known = [name for name in known if not any(_is_in(name, f"{outside}.{part}") for part in allowed)]
        assert known == [], module


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_large_libraries_are_imported_only_by_the_rooms_that_are_about_them(library: str) -> None:
    users = {name for name in _modules() if any(_is_in(imported, library) for imported in _imports(name))}
    assert users, "somebody uses it"
    assert not [name for name in users if not any(_is_in(name, room) for room in LIBRARIES[library])]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: _imports(name) & _modules().keys() for name in _modules()}
    # `import tfrecord_io` gives its modules lazily, for type checkers alone it names them.
    graph["tfrecord_io"] = frozenset()
    graphlib.TopologicalSorter(graph).prepare()


# In fresh processes

HEAVY = {"tensorflow", "keras", "apache_beam", "datasets", "transformers", "pandas"}


def imports(modules: list[str]) -> str:
    return "".join(f"import {name}\n" for name in modules)


@pytest.mark.parametrize(
    ("modules", "needed", "heavy"),
    [
        (["tfrecord_io.errors", "tfrecord_io.schema", "tfrecord_io.manifest"], "json", {"numpy", "numba", "click"}),
        (["tfrecord_io.examples", "tfrecord_io.records"], "numpy", {"pyarrow", "pipelines", "click", "fsspec"}),
        (["pipelines.prepare.tokenize.chat.renderer"], "jinja2", {"tokenizers", "numba", "fsspec"}),
        (["pipelines.cli.commands"], "click", {"numpy", "numba", "pyarrow", "fsspec", "rich"}),
        (["pipelines.train.cli"], "click", {"jax"}),
    ],
)
def test_what_starts_fast_imports_nothing_heavy(modules: list[str], needed: str, heavy: set[str]) -> None:
    imported = imported_by(imports(modules))
    assert needed in imported
    assert not imported & (HEAVY | heavy)


@pytest.mark.slow
def test_neither_the_prepare_side_nor_a_whole_build_imports_tensorflow(tmp_path: Path) -> None:
    """In one process: reading of sources, a build, which needs no Beam either, then all modules."""
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
    every = [*_of("pipelines.prepare"), "pipelines.cli.commands"]
    handlers = "import logging\nhandlers = logging.getLogger().handlers[:]\n"
    left_alone = f"{handlers}{imports(every)}assert logging.getLogger().handlers == handlers, 'the caller decides'\n"
    programs = [imports(_of("pipelines.prepare.sources")), build, left_alone]
    sources, built, prepare = imported_in_turn(programs, building.REVIEWS, *arguments)
    # `datasets` is imported when a dataset is opened.
    assert "pyarrow" in sources
    assert not sources & (HEAVY - {"pandas"})
    assert {"apache_beam", "pyarrow"} <= prepare, "the fence is looked at in earnest"
    assert "apache_beam" not in built
    assert (tmp_path / "out" / "manifest.json").exists()
    assert not (prepare | built) & {"tensorflow", "keras", "tensorflow_datasets", "torch", "jax"}


def test_local_files_need_no_module_of_remote_storage(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pipelines.prepare import storage\n"
        "from pipelines.prepare.storage import local_storage\n"
        "path = storage.join(sys.argv[1], 'deep', 'file')\n"
        "with local_storage.locked(sys.argv[1]):\n"
        "    storage.write_bytes(path, b'x', replacing=storage.versions([path]).get(path))\n"
        "assert (storage.read_bytes(path), storage.size(path), storage.exists(path)) == (b'x', 1, True)\n"
        "assert list(storage.read_folder(sys.argv[1])) == ['deep/file']\n"
        "storage.delete(path)\n"
        "ours = [name for name in sys.modules if name.startswith('pipelines.prepare.storage.')]\n"
        "assert not [name for name in ours if 'gcs' in name or 'object_storage' in name], ours\n"
        "assert not [name for name in sys.modules if name.startswith(('google.cloud.storage', 'google.api_core'))]\n"
    )
    assert not imported_by(program, tmp_path / "out") & {"gcsfs", "fsspec", "requests", "aiohttp"}


@pytest.mark.slow
def test_training_and_evaluation_need_tensorflow_and_numpy_alone() -> None:
    """The package is installed on training hosts without its dependencies."""
    program = (
        "import sys\n"
        "for name in ('numba', 'pyarrow', 'datasets', 'transformers', 'tokenizers', 'apache_beam', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from tfrecord_io import objectives, reader\n"
        "data = reader.open(sys.argv[1])\n"
        "for split, options in (('train', {'objective': objectives.masked_lm(0.15)}), ('validation', {})):\n"
        "    next(iter(data.dataset(split, global_batch_size=8, **options)))\n"
    )
    assert "tensorflow" in imported_by(program, building.reviews())
