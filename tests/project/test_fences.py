"""Who may import what, each in a fresh process: the sides of the format never pull in each other's weight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import building


def _modules(package: str) -> list[str]:
    """Of a package and all that are in it."""
    files = (building.REPOSITORY / package).rglob("*.py")
    return sorted(".".join(path.relative_to(building.REPOSITORY).with_suffix("").parts) for path in files)


PREPARE = _modules("pipelines/prepare")
SOURCES = _modules("pipelines/prepare/sources")
FORMAT = _modules("tfrecord_io")
TRAIN = _modules("pipelines/train")
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
