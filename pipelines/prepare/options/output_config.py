"""Options that say where the dataset goes, and the name, size and compression of its files."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Literal

from pipelines.prepare.options import paths
from pipelines.prepare.options.split_options import SPLIT_NAME
from pipelines.terminal.option_fields import check, option
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import without_access

__all__ = ["DEFAULT_SHARD_BYTES", "Compression", "OutputConfig", "default_name", "parse_size"]

Compression = Literal["none", "gzip"]

DEFAULT_SHARD_BYTES = 10**8

_shards = functools.partial(option, group="Shards")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")


def parse_size(text: str, *, option: str = "--shard-size") -> int:
    """Return the bytes in a size such as `100MB` (10^8), `64MiB` (2^26) or `5000`.

    Raises: ConfigError if it is not a positive number with a known unit.
    """
    match = _SIZE.match(text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None or float(match.group(1)) <= 0:
        raise ConfigError(
            f"size {text!r}, expected a positive number with one of the units B, KB, MB, GB, KiB, MiB, GiB",
            remedy=f"write for example {option} 100MB",
        )
    # Hundreds of digits overflow to infinity, which `round` cannot convert.
    return max(1, round(min(float(match.group(1)) * unit, 10.0**18)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Where to write. An empty `name` is replaced by PrepareConfig with one from the dataset (`default_name`)."""

    root: str = option("Folder or gs:// address.", group="Output", flags="--output -o", metavar="OUT")
    shard_bytes: int = _shards(
        "Size of a shard.",
        DEFAULT_SHARD_BYTES,
        flags="--shard-size",
        metavar="SIZE",
        parse=parse_size,
        typed_default="100MB",
        least=1,
        most=10**11,
        remedy="give for example --shard-size 100MB: a shard is made in memory",
        fingerprint="always",
    )
    compression: Compression = _shards("Compression of shards; TFDS cannot read gzip.", "none", fingerprint="always")
    index: tuple[str, ...] = _shards(
        "Also write this kind of index for each shard.", (), choices=("dali",), fingerprint="changed"
    )
    name: str = _shards("Prefix of the shards' names. Default: from DATASET.", "", metavar="NAME", fingerprint="always")

    def __post_init__(self) -> None:
        if not self.root:
            raise ConfigError("--output is empty, expected a folder or a gs:// address", remedy="give --output OUT")
        if self.name and not SPLIT_NAME.match(self.name):
            raise ConfigError(
                f"--name {self.name!r}, expected letters, digits, '_', '-', '+' or '.', not beginning with a dot",
                remedy="choose another --name",
            )
        if self.index and self.compression == "gzip":
            raise ConfigError(
                "--index dali with --compression gzip, expected one of them: gzip hides where records begin",
                remedy="leave out one of the two",
            )
        check(self)

    @property
    def dali_index(self) -> bool:
        """Return whether to write DALI's index of each shard."""
        return bool(self.index)


def default_name(dataset: str, *more: str) -> str:
    """Derive the shards' name from the last part of the dataset's path or id that is not a glob.

    Several paths are named after the folder that they share.
    """
    if more:
        dataset = paths.common_folder((dataset, *more))
    parts = [part for part in re.split(r"[/\\]", without_access(dataset)) if part and not re.search(r"[*?\[]", part)]
    stem = parts[-1].partition(".")[0] if parts else ""
    return re.sub(r"[^A-Za-z0-9_+\-]", "_", stem) or "dataset"
