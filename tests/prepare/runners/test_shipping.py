"""Packages for workers: this package as installed here, unless the user chooses another."""

import json
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

from pipelines.prepare.runners import shipping
from tests import building
from tests.support import limits, processes, seams
from tfrecord_io.errors import ConfigError, PrepError


def shipped(folder: Path, *args: str) -> SetupOptions:
    options = PipelineOptions(list(args))
    shipping.ship(options.view_as(SetupOptions), options.view_as(WorkerOptions), str(folder))
    return options.view_as(SetupOptions)


def modules() -> set[str]:
    """Every file of the package, as a checkout has it, but what only commands and the trainer run."""
    files = (path for package in ("pipelines", "tfrecord_io") for path in (building.REPOSITORY / package).rglob("*.py"))
    names = {str(path.relative_to(building.REPOSITORY)) for path in files}
    elsewhere = ("train", "cli", "prepare/report")
    return {name for name in names if not name.startswith(tuple(f"pipelines/{room}/" for room in elsewhere))}


def pip(*args: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, args)]
    subprocess.run(command, check=True, capture_output=True, timeout=limits.PROCESS)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (package,) = shipped(tmp_path_factory.mktemp("wheel")).extra_packages
    return Path(package)


def test_the_modules_that_workers_run_are_sent(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as package:
        names = {name for name in package.namelist() if ".dist-info/" not in name}
    assert names == modules() | {"pipelines/py.typed", "tfrecord_io/py.typed"}


def test_the_launchers_versions_are_what_workers_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"datasets": "1.0", "tokenizers": "2.0", "transformers": "3.0+local", "tiktoken": "4.0"}
    versions |= {"fastokens": "5.0", "ftfy": "6.0"}  # and no gigatoken, nor the other extras

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    seams.put(monkeypatch, wheel=lambda folder: folder / "x.whl")
    monkeypatch.setitem(sys.modules, "tiktoken", sys)
    monkeypatch.delitem(sys.modules, "sentencepiece", raising=False)
    setup = shipped(tmp_path)
    expected = ["datasets==1.0", "tokenizers==2.0", "fastokens==5.0", "ftfy==6.0", "tiktoken==4.0"]
    assert Path(setup.requirements_file).read_text().split() == expected
    assert setup.requirements_cache == "skip", "they are not downloaded here"


@pytest.mark.parametrize(
    "option", ["setup_file", "extra_package", "extra_packages", "sdk_container_image", "worker_harness_container_image"]
)
def test_what_the_user_says_of_packages_wins(tmp_path: Path, option: str) -> None:
    before = PipelineOptions([f"--{option}=x"]).get_all_options(drop_default=True)
    options = PipelineOptions([f"--{option}=x"])
    shipping.ship(options.view_as(SetupOptions), options.view_as(WorkerOptions), str(tmp_path))
    assert options.get_all_options(drop_default=True) == before
    assert not list(tmp_path.iterdir())


def test_a_users_own_requirements_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, wheel=lambda folder: folder / "x.whl")
    setup = shipped(tmp_path, "--requirements_file=mine.txt")
    assert (setup.requirements_file, setup.requirements_cache) == ("mine.txt", None)
    assert setup.extra_packages == [str(tmp_path / "x.whl")]


SHIP = (
    "import json, sys\n"
    "from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions\n"
    "from pipelines.prepare.runners import shipping, on_beam\n"
    # What tasks are functions of: shards, ingestion, comparisons of rows, exports.
    "from pipelines.prepare.dedup import deciding\n"
    "from pipelines.prepare.export import exporting\n"
    "from pipelines.prepare.shards import shard_maker\n"
    "from pipelines.prepare.sources.ingest import ingest\n"
    "options = PipelineOptions([])\n"
    "shipping.ship(options.view_as(SetupOptions), options.view_as(WorkerOptions), sys.argv[1])\n"
    "print(json.dumps([shipping.__file__, *options.view_as(SetupOptions).extra_packages]))\n"
)


@pytest.mark.slow
def test_an_installed_package_is_sent_with_its_requirements_and_what_tasks_import(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    pip("install", "--no-deps", "--no-index", "--target", installed, wheel)
    environment = {**building.environment(), "PYTHONPATH": str(installed)}
    ended = processes.run([sys.executable, "-c", SHIP, tmp_path], cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    code, sent = json.loads(ended.stdout.splitlines()[-1])
    assert Path(code).is_relative_to(installed)
    again = tmp_path / "again"
    pip("install", "--no-deps", "--no-index", "--target", again, sent)
    assert described(again) == described(installed)
    assert modules() <= {str(path.relative_to(again)) for path in again.rglob("*.py")}


def described(folder: Path) -> tuple[str, set[str]]:
    (wheel,) = metadata.distributions(path=[str(folder)])
    return wheel.version, {need for need in wheel.requires or () if "extra ==" not in need}


def test_what_is_not_installed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, distribution="not-installed-at-all")
    with pytest.raises(ConfigError, match="is not installed"):
        shipped(tmp_path)


def test_a_worker_with_other_versions_makes_nothing() -> None:
    shipping.require_versions(shipping.versions())
    shipping.require_versions({})
    with pytest.raises(PrepError, match=r"started: tokenizers [\d.]+, expected 0.0.1; .*--sdk_container_image"):
        shipping.require_versions({**shipping.versions(), "tokenizers": "0.0.1"})
