"""Configuration of a build."""

import dataclasses
import functools
import operator
import re
from typing import Any, Literal

from pipelines.option_fields import check, fingerprint_items, option, require_taken
from pipelines.prepare.options import paths
from pipelines.prepare.options.addresses import ADDRESS
from pipelines.prepare.options.layout_config import SHARE, LayoutConfig, SpecialTokens, Truncation
from pipelines.prepare.options.source_config import SPLIT_NAME, FunctionKind, FunctionOption, SourceConfig
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import without_access

__all__ = ["FunctionKind", "FunctionOption", "LayoutConfig", "SourceConfig", "SpecialTokens", "Truncation"]

Side = Literal["left", "right"]
# To add an engine: add its name here, a module in `tokenize.engines`, and a line in `tokenize.engines.choice`.
EngineName = Literal["auto", "hf", "wordpiece", "unigram", "fastokens", "gigatoken"]
Compression = Literal["none", "gzip"]

WORKERS: dict[str, Any] = {"flags": "--workers --num-proc", "least": 1, "most": 1024, "remedy": "leave --workers out"}

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*\Z")
_tokenizer, _run = (functools.partial(option, group=title) for title in ("Tokenizer", "Run"))
_shards = functools.partial(option, group="Shards", fingerprint="always")


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `100MB` (10^8), `64MiB` (2^26) or `5000`. Raises: ConfigError otherwise."""
    match = _SIZE.match(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise ConfigError(
            f"size {text!r}, expected a positive number with one of the units B, KB, MB, GB, KiB, MiB, GiB",
            remedy="write for example --shard-size 100MB",
        )
    # Hundreds of digits overflow to infinity, which `round` cannot convert.
    return max(1, round(min(float(match[1]) * unit, 10.0**18)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Options of the tokenizer. `chat_template`: text of a chat template to use in place of the tokenizer's own."""

    name: str = _tokenizer(
        "Hub id or folder of the tokenizer.",
        brief="Hub id or folder of the tokenizer.",
        flags="--tokenizer",
        metavar="NAME_OR_DIR",
        parse=paths.tokenizer_folder,
    )
    revision: str | None = _tokenizer(
        "Branch, tag or commit of a Hub tokenizer.", None, flags="--tokenizer-revision", metavar="REV"
    )
    truncation_side: Side | None = _tokenizer(
        "Side on which long texts are cut. Default: the tokenizer's.", None, fingerprint="always"
    )
    padding_side: Side | None = _tokenizer("Side of the padding. Default: the tokenizer's.", None, fingerprint="always")
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(
                "the tokenizer's name is empty, expected a Hub id or a folder", remedy="give --tokenizer NAME_OR_DIR"
            )
        check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Options of the output folder and its shards. `PrepareConfig` replaces an empty `name` with `default_name`."""

    root: str = option(
        f"Folder or {ADDRESS} address.",
        brief=f"Folder or {ADDRESS} address to write.",
        group="Output",
        flags="--output -o",
        metavar="OUT",
    )
    shard_bytes: int = _shards(
        "Size of a shard.",
        10**8,
        flags="--shard-size",
        metavar="SIZE",
        parse=parse_size,
        typed_default="100MB",
        least=1,
        most=10**11,
        remedy="give for example --shard-size 100MB, since a shard is made in memory",
    )
    compression: Compression = _shards("Compression of shards; TFDS cannot read gzip.", "none")
    name: str = _shards("Prefix of the shards' file names. Default: derived from DATASET.", "", metavar="NAME")

    def __post_init__(self) -> None:
        if not self.root:
            raise ConfigError(f"--output is empty, expected a folder or {ADDRESS}", remedy="give --output OUT")
        if self.name and not SPLIT_NAME.match(self.name):
            raise ConfigError(
                f"--name {self.name!r}, expected letters, digits, '_', '-', '+' or '.', beginning with a letter, "
                "a digit or '_'",
                remedy="choose another --name",
            )
        check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """All options of a build. `beam_args`: arguments of an Apache Beam runner; empty to build on this machine."""

    source: SourceConfig
    tokenizer: TokenizerConfig
    output: OutputConfig
    layout: LayoutConfig = dataclasses.field(default_factory=LayoutConfig)
    beam_args: tuple[str, ...] = ()
    engine: EngineName = _tokenizer(
        "Implementation of the tokenizer; all give the same tokens, auto chooses the fastest.", "auto"
    )
    seed: int = _shards("Seed for the shuffle and for fill-in-the-middle.", 0, least=0)
    shuffle: bool = _shards("Shuffle rows, or keep the source's order.", True, flags="--shuffle/--no-shuffle")
    max_error_rate: float = _shards("Share of rows that may be rejected.", 0.0, fingerprint=None, **SHARE)
    workers: int | None = _run(
        "Worker processes; any number gives the same output. Default: one per core, two per core for remote output.",
        None,
        brief="Processes. Default: one per core.",
        **WORKERS,
    )
    overwrite: bool = _run(
        "Continue an interrupted build (default), or start over.",
        False,
        brief="Continue (default), or start over.",
        flags="--resume/--overwrite",
        parse=operator.not_,
        typed_default=True,
    )
    append: bool = _run(
        "Add new rows of the same source to the finished dataset, as further shards.",
        False,
        brief="Add new rows to a finished dataset.",
    )

    def __post_init__(self) -> None:
        if not self.output.name:
            name = default_name(self.source.dataset, *self.source.more_paths)
            object.__setattr__(self, "output", dataclasses.replace(self.output, name=name))
        check(self)
        require_taken(self.source, "--layout", self.layout.name)
        if self.append and (self.source.dedup or self.source.decontaminate):
            raise ConfigError(
                "--append with --dedup or --decontaminate: an append does not compare new rows with old ones",
                remedy="build the dataset again with --overwrite",
            )

    def fingerprint_options(self) -> dict[str, Any]:
        """Return the values of options that affect the bytes of the output, by their names in the fingerprint."""
        parts = (self.source, self.tokenizer, self.layout, self.output, self)
        return {name: value for part in parts for name, value in fingerprint_items(part).items()}


def default_name(dataset: str, *more: str) -> str:
    """Return a name for shards: the last part of the dataset's id or path, or of the common folder of several paths."""
    if more:
        dataset = paths.common_folder((dataset, *more))
    parts = [part for part in re.split(r"[/\\]", without_access(dataset)) if part and not re.search(r"[*?\[]", part)]
    stem = parts[-1].partition(".")[0] if parts else ""
    return re.sub(r"[^A-Za-z0-9_+\-]", "_", stem) or "dataset"
