"""What workers on machines of their own install before they start: this package, and the libraries that decide bytes.

    run from        sent as                                                           by Beam's option
    a checkout      an sdist, made by its setup.py                                    --extra_package
    a wheel         that wheel, put together again from the installed files           --extra_package
    either          datasets, tokenizers, transformers and the engines of other       --requirements_file
                    projects, in the launcher's versions

Base dependencies only: workers have no use for TensorFlow. An extra package is installed even where one of the same
version is there already, and Beam does nothing with it here; of a --setup_file it would make an sdist, printing what
that prints. A user's own --setup_file, --extra_package or --sdk_container_image wins; then it is for them to see to it
that workers have this package. Each worker compares its versions with the launcher's before it makes anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions

import tfrecord_io
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["require_versions", "ship", "versions"]

_DISTRIBUTION = "prep-tfrecords"
_PACKAGES = ("pipelines", "tfrecord_io")
# Without MANIFEST.in, which would add tests and documents: workers need neither.
_CHECKOUT_FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
_PINNED = ("datasets", "tokenizers", "transformers")
# Engines of the extra `fast`: workers tokenize as fast as the launcher would, and by the same releases.
_IF_INSTALLED = ("fastokens", "gigatoken")
# What some tokenizers load when they are opened, and no base dependency.
_IF_LOADED = ("sentencepiece", "tiktoken")
# Of the installed metadata these say where and by whom this copy was installed, which is nobody's business.
_OF_THIS_COPY = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
# Besides what Python leaves behind: what trains models, which no worker does.
_NOT_FOR_WORKERS = ("__pycache__", "*.pyc", "train")
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def versions() -> dict[str, str]:
    """What has to be the same on launcher and workers."""
    return {
        _DISTRIBUTION: tfrecord_io.__version__,
        **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
    }


def require_versions(expected: Mapping[str, str]) -> None:
    """On a worker. Raises: PrepError if it has other versions than the launcher."""
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
    """Puts into `options` what workers are to install, unless the user has said it. `folder` has to last until the
    job is submitted.

    Raises: ConfigError if this package cannot be sent.
    """
    setup, worker = options.view_as(SetupOptions), options.view_as(WorkerOptions)
    if setup.setup_file or setup.extra_packages or worker.sdk_container_image or worker.worker_harness_container_image:
        return
    checkout = Path(tfrecord_io.__file__).resolve().parents[1]
    package = _sdist(checkout, Path(folder)) if _is_checkout(checkout) else _wheel(Path(folder))
    setup.extra_packages = [str(package)]
    if not setup.requirements_file:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(f"{pin}\n" for pin in _pins()))
        setup.requirements_file = str(requirements)
        # Or else Beam would download them here, to upload them again.
        setup.requirements_cache = "skip"


def _pins() -> Iterator[str]:
    for name in (
        *_PINNED,
        *filter(_is_installed, _IF_INSTALLED),
        *(name for name in _IF_LOADED if name in sys.modules),
    ):
        version = metadata.version(name)
        if "+" not in version:  # made here, and nowhere to be had
            yield f"{name}=={version}"


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_checkout(folder: Path) -> bool:
    try:
        return f'name="{_DISTRIBUTION}"' in (folder / "setup.py").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def _sdist(checkout: Path, folder: Path) -> Path:
    """What `setup.py sdist` makes. It runs in a copy, since it leaves traces, and may not write to the checkout."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in _CHECKOUT_FILES:
        if (checkout / name).is_file():
            shutil.copy(checkout / name, copy / name)
    for package in _PACKAGES:
        shutil.copytree(checkout / package, copy / package, ignore=shutil.ignore_patterns(*_NOT_FOR_WORKERS))
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(folder / "dist")]
    made = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    if made.returncode:
        said = made.stderr.strip().splitlines() or [f"it ended with status {made.returncode}"]
        raise ConfigError(
            f"{checkout}: `python setup.py sdist` cannot make the package that workers install: {said[-1]}",
            remedy="pip install setuptools, or say what workers are to install with --extra_package after the --",
        )
    (sdist,) = (folder / "dist").iterdir()
    return sdist


def _wheel(folder: Path) -> Path:
    """The wheel that this package was installed from: its files, its metadata, and a list of both."""
    contents = _installed_files()
    info = next((name.partition("/")[0] for name in contents if name.endswith(".dist-info/WHEEL")), None)
    if info is None or not all(f"{package}/__init__.py" in contents for package in _PACKAGES):
        raise ConfigError(
            f"{_DISTRIBUTION} is not installed from a wheel, nor is there a checkout with its setup.py: workers cannot "
            "be given the same",
            remedy="install it with pip, or say what workers are to install with --extra_package after the --",
        )
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in contents.items():
            wheel.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)
    return path


def _installed_files() -> dict[str, bytes]:
    """The files of the wheel by name, sorted; none if nothing is known of it."""
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, bytes] = {}
    for file in sorted(distribution.files or (), key=str):
        top = file.parts[0]
        if file.suffix == ".pyc" or file.name in _OF_THIS_COPY:
            continue
        if top in _PACKAGES or top.endswith(".dist-info"):
            found[file.as_posix()] = Path(os.fspath(file.locate())).read_bytes()
    return found


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
