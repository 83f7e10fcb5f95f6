"""Packages for workers on other machines: this project, and the libraries that decide bytes.

    sent                                                                              by Beam's option
    this package, as an sdist                                                         --extra_package
    datasets, tokenizers, transformers and the engines of other projects, in the      --requirements_file
    launcher's versions

Setuptools makes the sdist from a copy of the package, with a setup.py that repeats the installed name, version and
requirements.

Workers get base dependencies only, since they do not need TensorFlow. An --extra_package is used because it is
installed even if the same version is present, and Beam does not process it here; for a --setup_file it would run
setuptools and print its output. A user's own --setup_file, --extra_package or --sdk_container_image takes precedence;
then the user must see to it that workers have this package. Each worker compares its versions with the launcher's
before it starts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

import tfrecord_io
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["require_versions", "ship", "versions"]

_DISTRIBUTION = "prep-tfrecords"
_PACKAGES = ("pipelines", "tfrecord_io")
_PINNED = ("datasets", "tokenizers", "transformers", "fastokens", "gigatoken")
# Libraries that some tokenizers load when they are opened; not base dependencies.
_IF_LOADED = ("sentencepiece", "tiktoken")
# Files that Python leaves behind; the trainer and the commands; and the rooms that stand below this one, which nothing
# that runs on workers may import (tests/project/test_rooms.py).
_NOT_FOR_WORKERS = ("__pycache__", "*.pyc", "train", "cli", "launch", "audit", "report", "doctor")


def versions() -> dict[str, str]:
    """Return the versions that must be the same on launcher and workers."""
    return {
        _DISTRIBUTION: tfrecord_io.__version__,
        **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
    }


def require_versions(expected: Mapping[str, str]) -> None:
    """Check a worker's versions. Raises: PrepError if they differ from the launcher's."""
    if wrong := [
        f"{name} {found}, expected {expected[name]}"
        for name, found in versions().items()
        if found != expected.get(name, found)
    ]:
        raise PrepError(
            f"a worker has other versions than the launcher: {'; '.join(wrong)}",
            remedy="install the launcher's in the workers' image, or leave out --sdk_container_image, --setup_file, "
            "--extra_package and --requirements_file",
        )


def ship(options: PipelineOptions, folder: str) -> None:
    """Add to `options` what workers install, unless the user has chosen that. `folder` must exist until the job is
    submitted.

    Raises: ConfigError if this package cannot be sent.
    """
    setup, worker = options.view_as(SetupOptions), options.view_as(WorkerOptions)
    if setup.setup_file or setup.extra_packages or worker.sdk_container_image or worker.worker_harness_container_image:
        return
    setup.extra_packages = [str(_sdist(Path(folder)))]
    if not setup.requirements_file:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(f"{pin}\n" for pin in _pins()))
        setup.requirements_file = str(requirements)
        # Otherwise Beam would download them here, and upload them again.
        setup.requirements_cache = "skip"


def _pins() -> Iterator[str]:
    for name in (*filter(_is_installed, _PINNED), *(name for name in _IF_LOADED if name in sys.modules)):
        version = metadata.version(name)
        if "+" not in version:  # a local build, which no registry has
            yield f"{name}=={version}"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _sdist(folder: Path) -> Path:
    """Make the sdist in a copy, since setuptools leaves files behind, and must not write to a checkout."""
    copy, source = folder / "copy", Path(tfrecord_io.__file__).resolve().parents[1]
    for package in _PACKAGES:
        shutil.copytree(source / package, copy / package, ignore=shutil.ignore_patterns(*_NOT_FOR_WORKERS))
    (copy / "setup.py").write_text(_setup(), encoding="utf-8")
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder / "dist")]
    made = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    if made.returncode:
        said = made.stderr.strip().splitlines() or [f"it ended with status {made.returncode}"]
        raise ConfigError(
            f"{source}: `python setup.py sdist` cannot make the package that workers install: {said[-1]}",
            remedy="pip install setuptools, or give what workers should install with --extra_package after the --",
        )
    (sdist,) = (folder / "dist").iterdir()
    return sdist


def _setup() -> str:
    """Return a setup.py with the name, version and base requirements of the installed package.

    Raises: ConfigError if it is not installed.
    """
    try:
        installed = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{_DISTRIBUTION} is not installed here, so it cannot be sent to workers",
            remedy="pip install -e CHECKOUT, or give what workers should install with --extra_package after the --",
        ) from error
    fields = {
        "name": _DISTRIBUTION,
        "version": installed.version,
        "python_requires": installed.metadata["Requires-Python"],
        "install_requires": [each for each in installed.requires or () if "extra ==" not in each],
        "package_data": {package: ["py.typed"] for package in _PACKAGES},
    }
    return f"import setuptools\n\nsetuptools.setup(packages=setuptools.find_packages(), **{fields!r})\n"
