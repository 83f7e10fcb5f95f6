"""The command that makes a dataset, written again from what the dataset says of itself.

The manifest holds every option that decides bytes, and .prep/ where the source was. Options that change no byte, such
as --workers, are not recorded.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.options.output_config import default_name
from pipelines.prepare.sources.rows.hash_filter import HASHES
from pipelines.terminal.option_fields import declared
from tfrecord_io.manifest import Manifest
from tfrecord_io.shown import without_secrets

__all__ = ["of_config", "of_manifest"]

_SOURCE = "DATASET"
_CONFIGS = (OutputConfig, TokenizerConfig, SourceConfig, LayoutConfig, PrepareConfig)


def of_manifest(manifest: Manifest, *, source: Mapping[str, Any] | None, output: str) -> str:
    """Return the command of a finished dataset; `source` is its source.json, None if that is gone.

    Hub ids have no need of it: the manifest names them.
    """
    named = source or {}
    is_object = manifest.source.get("kind") == "object"
    dataset = (None if is_object else named.get("dataset")) or manifest.source.get("name") or _SOURCE
    compared = manifest.options.get("decontaminate") or {"sets": (), "words": None}
    values = {
        **manifest.options,
        "root": output,
        "tokenizer": manifest.tokenizer.name,
        "config": named.get("config"),
        "revision": named.get("revision") or manifest.source.get("revision"),
        "decontaminate": compared["sets"],
        "decontaminate_words": compared["words"],
        "max_error_rate": _max_error_rate(manifest),
        **_splits(manifest, named.get("rows", {})),
    }
    steps = [(kind, step[kind]) for step in values.get("steps", ()) for kind in ("map", "filter") if kind in step]
    return _command([str(dataset), *map(str, named.get("more", ()))], values, steps)


def of_config(config: PrepareConfig) -> str:
    """Return the command that would build what `config` describes."""
    source = config.source
    parts = (source, config.tokenizer, config.layout, config.output, config)
    values = {
        each.option.key or each.field: getattr(part, each.field)
        for part in parts
        for each in declared(type(part))
        if each.option.group != "Run"
    }
    steps = [(step.kind, step.spec) for step in source.functions]
    return _command([source.dataset, *source.more_paths], values, steps)


def _command(datasets: Sequence[str], values: Mapping[str, Any], steps: Sequence[tuple[str, str]]) -> str:
    """Return the command with those of the options, by their names in the fingerprint, that differ from the default."""
    words = list(datasets)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if given.get("name") == default_name(*datasets):
        del given["name"]
    for each in (each for config in _CONFIGS for each in declared(config)):
        value = given.get(each.option.key or each.field)
        if value is None or value == each.default:
            continue
        if isinstance(value, bool):
            words.append(each.flags[0].split("/")[not value])
        elif each.is_repeatable:
            words += [word for text in value for word in (each.flag, str(text))]
        else:
            words += [each.flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    words += [word for kind, spec in steps for word in (f"--{kind}", spec)]
    return " \\\n  ".join(_lines([shlex.quote(without_secrets(word)) for word in words]))


def _splits(manifest: Manifest, rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for splits, none of them if the dataset has every split of its source as a whole."""
    origins, held = manifest.source.get("origins", {}), manifest.options.get("hold_out", ())
    ranges = manifest.source.get("splits", {})
    new = {each["split"]: each for each in held}
    splits = []
    for name in sorted(ranges.keys() - new.keys()):
        origin = origins.get(name, name)
        whole = ranges[name] == [[0, rows.get(origin)]] or origin not in rows
        if not whole or origin != name:
            spec = origin if whole else "+".join(f"{origin}[{start}:{stop}]" for start, stop in ranges[name])
            splits.append(spec if origin == name else f"{name}={spec}")
        elif set(rows) - {origins.get(each, each) for each in ranges}:
            splits.append(name)
    shares = {name: (each["hashes"][1] - each["hashes"][0]) / HASHES for name, each in new.items()}
    return {
        "splits": splits,
        "hold_out": [f"{name}={each['of']}:{100 * shares[name]:.6g}%" for name, each in new.items()],
        "hold_out_by": next((each.get("by") for each in held), None),
    }


def _max_error_rate(manifest: Manifest) -> str | None:
    """Return the smallest share of rejected rows that this dataset must have been allowed, rounded up."""
    ledgers = [split.ledger for split in manifest.splits.values()]
    bad = sum(sum(ledger.unusable.values()) for ledger in ledgers)
    total = sum(ledger.rows_in - ledger.rows_left_out for ledger in ledgers)
    return f"{math.ceil(1e4 * bad / total) / 1e4:g}" if bad else None


def _lines(words: Sequence[str]) -> Iterator[str]:
    line = ["prep-tfrecords", "build"]
    for word in words:
        if word.startswith("--"):
            yield " ".join(line)
            line = []
        line.append(word)
    yield " ".join(line)
