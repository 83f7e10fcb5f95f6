"""Options of an export: format, column names, output folder and splits."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pipelines.option_fields import check, option, require_taken
from pipelines.prepare.options.addresses import ADDRESS
from tfrecord_io.errors import ConfigError

ExportFormat = Literal["parquet", "arrayrecord", "megatron", "megatron-bridge", "olmo", "tfrecord"]


def _pairs(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = [each.partition("=") for each in texts]
    if wrong := [old for old, _, new in pairs if not new or not old]:
        raise ConfigError(f"--rename {wrong[0]}: expected OLD=NEW", remedy="write for example --rename label=labels")
    return tuple((old, new) for old, _, new in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Configuration of an export. `renamed`: pairs of old and new name. Empty `splits` means all."""

    to: ExportFormat = option("Format.")
    renamed: tuple[tuple[str, str], ...] = option(
        "Another name for a column. Repeatable.",
        (),
        flags="--rename",
        metavar="OLD=NEW",
        parse=_pairs,
        taken_with=("parquet", "arrayrecord", "tfrecord"),
    )
    dropped: tuple[str, ...] = option("Column to leave out. Repeatable.", (), flags="--drop", metavar="NAME")
    extra: tuple[str, ...] = option(
        "Column to write even where it says nothing new, for axolotl. Parquet only; repeatable.",
        (),
        flags="--add",
        choices=("attention_mask", "labels"),
        taken_with=("parquet",),
    )
    documents: bool = option(
        "A row for each document of concat and pack, not padded. Parquet only.", False, taken_with=("parquet",)
    )
    join_prompts: bool = option(
        "Write the prompt before each answer of a preference pair, not by itself. Parquet only.",
        False,
        taken_with=("parquet",),
    )
    push: str | None = option(
        "Dataset of the Hugging Face hub to upload the export to; a new one is private. Parquet only.",
        None,
        metavar="ORG/NAME",
        taken_with=("parquet",),
    )
    output: str = option(f"New folder, local or at a {ADDRESS} address.", flags="--output -o", metavar="DIR")
    splits: tuple[str, ...] = option("Split to export; repeatable. Default: all.", (), flags="--split")
    workers: int | None = option("Worker processes; never changes a byte.", None, metavar="N", least=1)
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        require_taken(self, "--to", self.to)
        olds = [old for old, _ in self.renamed]
        if twice := sorted({name for name in olds if olds.count(name) > 1 or name in self.dropped}):
            raise ConfigError(f"--rename {twice[0]}=…: it is renamed or dropped once more", remedy="keep one of them")

    def chosen(self, names: Iterable[str]) -> dict[str, str]:
        """Map the name of each kept column to its name in the export. Raises: ConfigError for a wrong name."""
        names = tuple(names)
        new = dict(self.renamed)
        if unknown := [name for name in (*new, *self.dropped) if name not in names]:
            raise ConfigError(
                f"--rename or --drop {unknown[0]}: there is no such column, expected one of {', '.join(names)}",
                remedy="correct the name",
            )
        found = {name: new.get(name, name) for name in names if name not in self.dropped}
        if clash := sorted({name for name in found.values() if list(found.values()).count(name) > 1}):
            raise ConfigError(f"two columns would be named {clash[0]!r}", remedy="give one another name with --rename")
        if not found:
            raise ConfigError("--drop leaves no column, expected at least one", remedy="keep one")
        return found

    def to_json(self) -> Mapping[str, Any]:
        """Return the settings that determine the bytes, except for the splits, as stored in export.json."""
        return {
            "to": self.to,
            "rename": dict(self.renamed),
            "drop": sorted(self.dropped),
            "add": sorted(self.extra),
            **{name: True for name in ("documents", "join_prompts") if getattr(self, name)},
        }
