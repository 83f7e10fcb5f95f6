"""Options of `prep-tfrecords export`."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pipelines.option_fields import check, option, require_taken
from pipelines.prepare.options.addresses import ADDRESS
from tfrecord_io.errors import ConfigError

ExportFormat = Literal["parquet", "arrayrecord", "megatron", "megatron-bridge", "olmo", "tfrecord"]


def _pairs(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [old for old, _, new in pairs if not new or not old]:
        raise ConfigError(f"--rename {wrong[0]}: expected OLD=NEW", remedy="write for example --rename label=labels")
    return tuple((old, new) for old, _, new in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Configuration of an export. `renamed`: pairs (old name, new name). `splits`: empty for all splits."""

    to: ExportFormat = option("Format of the export.")
    renamed: tuple[tuple[str, str], ...] = option(
        "New name of a column. Repeatable.",
        (),
        flags="--rename",
        metavar="OLD=NEW",
        parse=_pairs,
        taken_with=("parquet", "arrayrecord", "tfrecord"),
    )
    dropped: tuple[str, ...] = option("Column to leave out. Repeatable.", (), flags="--drop", metavar="NAME")
    extra: tuple[str, ...] = option(
        "Column to write even if other columns imply it, as axolotl needs. Parquet only; repeatable.",
        (),
        flags="--add",
        choices=("attention_mask", "labels"),
        taken_with=("parquet",),
    )
    documents: bool = option(
        "One row per document of concat and pack, without padding. Parquet only.", False, taken_with=("parquet",)
    )
    join_prompts: bool = option(
        "Write the prompt of a preference pair before each answer, not as its own column. Parquet only.",
        False,
        taken_with=("parquet",),
    )
    push: str | None = option(
        "Hub dataset to upload the export to; private if it is new. Parquet only.",
        None,
        metavar="ORG/NAME",
        taken_with=("parquet",),
    )
    output: str = option(f"New folder, local or at a {ADDRESS} address.", flags="--output -o", metavar="DIR")
    splits: tuple[str, ...] = option("Split to export; repeatable. Default: all.", (), flags="--split")
    workers: int | None = option(
        "Worker processes; any number gives the same output. Default: one per core.", None, metavar="N", least=1
    )
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        require_taken(self, "--to", self.to)
        old_names = [old for old, _ in self.renamed]
        if twice := sorted({name for name in old_names if old_names.count(name) > 1 or name in self.dropped}):
            cause = f"--rename {twice[0]}=…: another --rename or --drop names the same column"
            raise ConfigError(cause, remedy="keep one of these options")

    def chosen(self, names: Iterable[str]) -> dict[str, str]:
        """Return the new name of each kept column, by old name. Raises: ConfigError if the options do not fit."""
        names = tuple(names)
        new = dict(self.renamed)
        if unknown := [name for name in (*new, *self.dropped) if name not in names]:
            cause = f"--rename or --drop {unknown[0]}: there is no such column, expected one of {', '.join(names)}"
            raise ConfigError(cause, remedy="correct the name")
        chosen = {name: new.get(name, name) for name in names if name not in self.dropped}
        if clash := sorted({name for name in chosen.values() if list(chosen.values()).count(name) > 1}):
            raise ConfigError(f"two columns would be named {clash[0]!r}", remedy="rename one of them with --rename")
        if not chosen:
            raise ConfigError("--drop leaves no column, expected at least one", remedy="leave out one --drop")
        return chosen

    def to_json(self) -> Mapping[str, Any]:
        """Return the settings that affect the files' content, except the choice of splits, for export.json."""
        return {
            "to": self.to,
            "rename": dict(self.renamed),
            "drop": sorted(self.dropped),
            "add": sorted(self.extra),
            **{name: True for name in ("documents", "join_prompts") if getattr(self, name)},
        }
