"""The command that makes a dataset, written again from what the dataset says of itself.

The manifest holds every option that decides bytes, and .prep/ where the source was. Options that change no byte, such
as --workers, are not recorded.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare.options.config import LayoutConfig, PrepareConfig, SourceConfig
from pipelines.prepare.options.layout_traits import LAYOUT_COLUMNS, LAYOUT_OPTIONS
from pipelines.prepare.options.output_config import DEFAULT_SHARD_BYTES, default_name
from pipelines.prepare.sources.rows.hash_filter import HASHES
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_secrets

__all__ = ["of_config", "of_manifest"]

_SOURCE = "DATASET"


def of_manifest(manifest: Manifest, *, source: Mapping[str, Any] | None, output: str) -> str:
    """Return the command of a finished dataset; `source` is its source.json, None if that is gone.

    Hub ids have no need of it: the manifest names them.
    """
    options = manifest.options
    named = source or {}
    is_object = manifest.source.get("kind") == "object"
    dataset = (None if is_object else named.get("dataset")) or manifest.source.get("name") or _SOURCE
    words = [str(dataset), *map(str, named.get("more", ()))]
    words += ["--output", output, "--tokenizer", manifest.tokenizer.name]
    words += _options(config=named.get("config"), revision=named.get("revision") or manifest.source.get("revision"))
    words += _splits(manifest, named.get("rows", {}))
    words += _of_bytes(options, default=default_name(str(dataset)))
    if compared := options.get("decontaminate"):
        words += _repeated("decontaminate", compared["sets"]) + _options(decontaminate_words=compared["words"])
    for step in options.get("steps", ()):
        words += [word for kind in ("map", "filter") if kind in step for word in (f"--{kind}", str(step[kind]))]
    words += _max_error_rate(manifest)
    return _joined(words)


def of_config(config: PrepareConfig) -> str:
    """Return the command that would build what `config` describes."""
    source = config.source
    words = [source.dataset, *source.more_paths, "--output", config.output.root, "--tokenizer", config.tokenizer.name]
    words += _options(tokenizer_revision=config.tokenizer.revision, config=source.config, revision=source.revision)
    words += _repeated("split", source.splits) + _repeated("hold_out", source.hold_out)
    words += _options(hold_out_by=source.hold_out_by, limit=source.limit)
    items = {**config.fingerprint_options(), "max_length": config.layout.max_length}
    words += _of_bytes(items, default=default_name(source.dataset, *source.more_paths))
    if source.decontaminate:
        words += _repeated("decontaminate", source.decontaminate)
        words += _options(decontaminate_words=source.decontaminate_words)
    for step in source.functions:
        words += [f"--{step.kind}", step.spec]
    if config.max_error_rate:
        words += _options(max_error_rate=config.max_error_rate)
    return _joined(words)


def _of_bytes(options: Mapping[str, Any], *, default: str) -> list[str]:
    """Return the options that decide bytes, as the fingerprint lists them, but those that are as by default."""
    words: list[str] = []
    texts = tuple(options.get("text_columns") or ())
    if texts != SourceConfig.text_columns:
        words += _repeated("text_column", texts)
    words += _options(label_column=options.get("label_column"))
    words += ["--label-classes"] if options.get("label_classes") else []
    words += _repeated("keep_column", options.get("keep_columns") or ())
    words += _options(dedup=options.get("dedup"))
    words += ["--dedup-across-splits"] if options.get("dedup_across_splits") else []
    words += _options(**{name: options.get(name) for name in LAYOUT_COLUMNS})
    words += _options(layout=options.get("layout"), max_length=options.get("max_length"))
    for name in LAYOUT_OPTIONS:
        value = options.get(name)
        if value is None or value == getattr(LayoutConfig, name):
            continue
        words += [_flag(name)] if value is True else [_flag(name), _listed(value)]
    words += _options(truncation_side=options.get("truncation_side"), padding_side=options.get("padding_side"))
    if options.get("shard_bytes") not in (None, DEFAULT_SHARD_BYTES):
        words += ["--shard-size", str(options["shard_bytes"])]
    if options.get("compression") not in (None, "none"):
        words += ["--compression", str(options["compression"])]
    if options.get("seed"):
        words += ["--seed", str(options["seed"])]
    if options.get("shuffle") is False:
        words.append("--no-shuffle")
    if options.get("name") not in (None, default):
        words += ["--name", str(options["name"])]
    return words


def _splits(manifest: Manifest, rows: Mapping[str, Any]) -> list[str]:
    """Return --split and --hold-out, unless the dataset has every split of its source as a whole."""
    origins, held = manifest.source.get("origins", {}), manifest.options.get("hold_out", ())
    ranges = manifest.source.get("splits", {})
    new = {each["split"]: each for each in held}
    words: list[str] = []
    for name in sorted(ranges):
        origin = origins.get(name, name)
        whole = ranges[name] == [[0, rows.get(origin)]] or origin not in rows
        if name not in new and (not whole or origin != name):
            spec = origin if whole else "+".join(f"{origin}[{start}:{stop}]" for start, stop in ranges[name])
            words += ["--split", spec if origin == name else f"{name}={spec}"]
        elif name not in new and set(rows) - {origins.get(each, each) for each in ranges}:
            words += ["--split", name]
    for name, each in new.items():
        first, last = each["hashes"]
        words += ["--hold-out", f"{name}={each['of']}:{100 * (last - first) / HASHES:.6g}%"]
    return words + _options(hold_out_by=next((each.get("by") for each in held), None))


def _max_error_rate(manifest: Manifest) -> list[str]:
    """Return the smallest share of rejected rows that this dataset must have been allowed, rounded up."""
    ledgers = [split.ledger for split in manifest.splits.values()]
    bad = sum(sum(ledger.unusable.values()) for ledger in ledgers)
    total = sum(ledger.rows_in - ledger.rows_left_out for ledger in ledgers)
    return ["--max-error-rate", f"{math.ceil(1e4 * bad / total) / 1e4:g}"] if bad else []


def _options(**values: Any) -> list[str]:
    return [word for name, value in values.items() if value is not None for word in (_flag(name), str(value))]


def _repeated(name: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (_flag(name), str(value))]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _joined(words: Sequence[str]) -> str:
    """Return the words of `prep-tfrecords build` quoted for a shell, one option a line, without secrets."""
    lines = list(_lines([shlex.quote(without_secrets(word)) for word in words]))
    return " \\\n  ".join(lines)


def _lines(words: Sequence[str]) -> Iterator[str]:
    line = ["prep-tfrecords", "build"]
    for word in words:
        if word.startswith("--"):
            yield " ".join(line)
            line = []
        line.append(word)
    yield " ".join(line)
