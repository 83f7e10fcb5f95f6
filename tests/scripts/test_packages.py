"""The packages that are published: the source distribution, and the wheel."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests import building
from tests.building import REPOSITORY
from tests.support import limits

# For version control and the services that run scripts/check; nobody builds or tests with them.
LEFT_OUT = {".ci/run", ".gitignore", ".pre-commit-config.yaml"}
# What setuptools writes into every sdist.
METADATA = ("PKG-INFO", "setup.cfg", "prep_tfrecords.egg-info/")


def sources() -> set[str]:
    """The files of this checkout, or of the unpacked sdist that this is."""
    if (REPOSITORY / "PKG-INFO").exists():
        listed = (REPOSITORY / "prep_tfrecords.egg-info" / "SOURCES.txt").read_text(encoding="utf-8")
    else:
        command = ["git", "ls-files"]
        listed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.splitlines() if not name.startswith(METADATA)}


@pytest.mark.slow
def test_an_sdist_is_all_that_is_under_version_control(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in sources():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, checkout / name)
    (checkout / "tests" / "__pycache__").mkdir()
    (checkout / "tests" / "__pycache__" / "conftest.pyc").touch()

    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path / "dist")]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=limits.PROCESS)

    [sdist] = (tmp_path / "dist").iterdir()
    with tarfile.open(sdist) as packed:
        names = {member.name.partition("/")[2] for member in packed if member.isfile()}
    assert {name for name in names if not name.startswith(METADATA)} == {
        name for name in sources() - LEFT_OUT if not name.startswith(".github/")
    }


PACKAGES = ("pipelines", "prep_tfrecords", "tfrecord_io")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*PACKAGES, "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        source, target = REPOSITORY / name, folder / "tree" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir=dist"]
    subprocess.run([*build, "./tree"], cwd=folder, check=True, capture_output=True, timeout=limits.PROCESS)
    (path,) = (folder / "dist").iterdir()
    return path


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    files = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert names == files - {"tfrecord_io/pyproject.toml"}


def test_the_reader_is_a_distribution_of_its_own_with_the_same_bounds() -> None:
    """Building its wheel needs a network; `scripts/check_reader_alone` installs and tries it."""
    described = (REPOSITORY / "tfrecord_io" / "pyproject.toml").read_text()
    whole = (REPOSITORY / "setup.py").read_text()
    bounds = re.findall(r'"((?:numpy|numba|gcsfs)>=[\d.]+)"', described)
    assert len(bounds) == 3
    assert all(f'"{bound}"' in whole for bound in bounds)
    suffixes = {path.suffix for path in (REPOSITORY / "tfrecord_io").rglob("*") if path.is_file()}
    assert suffixes - {".pyc", ".nbi", ".nbc"} == {".py", ".typed", ".toml"}


@pytest.mark.slow
def test_the_programs_of_an_installed_wheel_start(wheel: Path, tmp_path: Path) -> None:
    """Libraries come from this environment; of this project only the wheel is there."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    environment = {name: value for name, value in building.environment().items() if name != "PYTHONPATH"}
    subprocess.run(install, env=environment, check=True, capture_output=True, timeout=limits.PROCESS)
    libraries = [path for path in Path(sysconfig.get_path("purelib")).iterdir() if "prep_tfrecords" not in path.name]
    for path in libraries:
        if not (site / path.name).exists() and path.suffix != ".pth":
            (site / path.name).symlink_to(path)

    script = tmp_path / "venv" / "bin" / "prep-tfrecords"
    for program in (script, script.with_name("train-tpu")):
        helped = subprocess.run([program, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert helped.returncode == 0, helped.stderr
        assert helped.stdout.startswith("Usage: ")
