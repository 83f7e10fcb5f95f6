"""Packages for remote workers: this project, and the libraries that determine output bytes.

    sent                                                                              by Beam's option
    this package, as a wheel with the installed name, version and requirements        --extra_package
    datasets, tokenizers, transformers, external engines, and packages that an        --requirements_file
    export or a ready function needs, in the launcher's versions

Workers get base dependencies only, without TensorFlow. A user's own --setup_file, --extra_package or
--sdk_container_image takes precedence and must provide this package. Each worker compares its versions with the
launcher's.
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
from pipelines.prepare.process.packages import PACKAGES
from tfrecord_io.errors import ConfigError, PrepError

_DISTRIBUTION = "prep-tfrecords"
_PACKAGES = ("pipelines", "tfrecord_io")
# Packages that no task imports. An export's tasks import `launch` and `audit`.
_NOT_FOR_WORKERS = {"train", "cli", "report"}


def versions() -> dict[str, str]:
    """Return the package versions that must be equal on launcher and workers."""
    return {
        _DISTRIBUTION: tfrecord_io.__version__,
        **{name: metadata.version(name) for name in ("tokenizers", "transformers")},
    }


def require_versions(expected: Mapping[str, str]) -> None:
    """Check a worker's versions. Raises: PrepError if they differ."""
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


def ship(setup: Any, worker: Any, folder: str) -> None:
    """Add packages for workers to Beam's SetupOptions, unless the user chose some.

    `folder` must exist until the job is submitted. Raises: ConfigError if this package cannot be sent.
    """
    if setup.setup_file or setup.extra_packages or worker.sdk_container_image or worker.worker_harness_container_image:
        return
    setup.extra_packages = [str(_wheel(Path(folder)))]
    if not setup.requirements_file:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(f"{pin}\n" for pin in _pins()))
        setup.requirements_file = str(requirements)
        # Beam would download them here, and upload them again.
        setup.requirements_cache = "skip"


def _pins() -> Iterator[str]:
    for package in PACKAGES:
        if package.sent == "installed" or (package.sent == "loaded" and package.name in sys.modules):
            with contextlib.suppress(metadata.PackageNotFoundError):
                version = metadata.version(package.name)
                if "+" not in version:  # no registry has a local build
                    yield f"{package.name}=={version}"


def _wheel(folder: Path) -> Path:
    """Write a wheel (https://packaging.python.org/specifications/binary-distribution-format) of this project.

    Raises: ConfigError if the project is not installed.
    """
    try:
        installed = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{_DISTRIBUTION} is not installed here, so it cannot be sent to workers",
            remedy="pip install -e CHECKOUT, or give what workers should install with --extra_package after the --",
        ) from error
    stem = f"{_DISTRIBUTION.replace('-', '_')}-{installed.version}"
    metadata_lines = [
        *("Metadata-Version: 2.1", f"Name: {_DISTRIBUTION}", f"Version: {installed.version}"),
        f"Requires-Python: {installed.metadata['Requires-Python']}",
        *(f"Requires-Dist: {each}" for each in installed.requires or () if "extra ==" not in each),
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
    made = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return made
