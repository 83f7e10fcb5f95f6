"""The versions that scripts/check installs are such as setup.py asks for."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.building import REPOSITORY

LOCKS = sorted((REPOSITORY / "requirements").glob("*-py*.txt"))


def locked(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+) \\$", path.read_text(), re.M))


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("metadata")
    command = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return next(folder.glob("*.egg-info/PKG-INFO")).read_text()


def requirements(metadata: str) -> Iterator[tuple[Requirement, str]]:
    for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.M):
        requirement = Requirement(line)
        extra = re.search(r"extra == [\"']([\w-]+)[\"']", line)
        yield requirement, extra[1] if extra else ""


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_the_locked_versions_satisfy_what_dev_asks_for(path: Path, metadata: str) -> None:
    versions = locked(path)
    python = {"python_version": re.sub(r".*-py3(\d+)", r"3.\1", path.stem)}
    needed = [(requirement, {"extra": extra, **python}) for requirement, extra in requirements(metadata)]
    needed = [(requirement, where) for requirement, where in needed if where["extra"] in ("", "dev")]
    required = [needs for needs, where in needed if not needs.marker or needs.marker.evaluate(where)]
    assert len(required) > 20
    for requirement in required:
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_lower_bounds_are_what_the_lowest_set_installs(metadata: str) -> None:
    (lowest,) = [path for path in LOCKS if path.stem.startswith("lowest")]
    versions = locked(lowest)
    for requirement in (requirement for requirement, extra in requirements(metadata) if not extra):
        (bound,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
        version = Version(versions[canonicalize_name(requirement.name)])
        assert version.release[: len(Version(bound).release)] == Version(bound).release, requirement


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_a_digest_and_those_that_build_this_one_are_there(path: Path) -> None:
    packages = re.split(r"\n(?=[a-z])", path.read_text())[1:]
    assert len(packages) == len(locked(path)) > 200
    assert all(re.search(r" \\\n    --hash=sha256:[0-9a-f]{64}\b", package) for package in packages)
    assert "setuptools" in locked(path)


def test_every_supported_python_is_locked_and_named_on_pages(metadata: str) -> None:
    minors = sorted(map(int, re.findall(r"Python :: 3\.(\d+)$", metadata, re.M)))
    assert {path.name for path in LOCKS if path.name.startswith("dev-")} == {f"dev-py3{minor}.txt" for minor in minors}
    for page in ("README.md", "docs/start/install.md", "docs/how-to/tpu-vm.md"):
        assert f"Python 3.{minors[0]} to 3.{minors[-1]}" in (REPOSITORY / page).read_text(), page


def test_the_engines_of_others_are_always_installed(metadata: str) -> None:
    belongs: dict[str, set[str]] = {}
    for requirement, extra in requirements(metadata):
        belongs.setdefault(requirement.name, set()).add(extra)
    assert belongs["fastokens"] == belongs["gigatoken"] == {""}


@pytest.mark.parametrize(("extra", "system", "held"), [("dev", "Linux x86_64", True), ("dev", "Darwin arm64", False),
                                                       ("fast", "Linux x86_64", False)])  # fmt: skip
def test_an_install_is_held_to_the_lock_made_for_it(tmp_path: Path, extra: str, system: str, held: bool) -> None:
    script = f"""
    uname() {{ echo "{system}"; }}
    OLDPWD=.
    source "{REPOSITORY}/scripts/_venv.sh"
    python_version() {{ echo 3.11; }}
    locked {extra}
    """
    ended = subprocess.run(["bash", "-euc", script], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert ended.stdout.split() == (["requirements/dev-py311.txt"] if held else [])
