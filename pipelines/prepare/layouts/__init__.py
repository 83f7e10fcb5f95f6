"""Layouts: how rows of text become records. `LAYOUTS` lists them by name; docs/how-to/layouts describes each."""

import dataclasses
from typing import Any

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, permuted
from pipelines.prepare.layouts.chat import ANSWERS, CHAT, PACKED_CHAT
from pipelines.prepare.layouts.documents import CONCAT, PACK
from pipelines.prepare.layouts.pad import PAD, TOKENS
from pipelines.prepare.layouts.preference import PREFERENCE
from pipelines.prepare.layouts.seq2seq import SEQ2SEQ
from pipelines.prepare.layouts.windows import QA, WINDOWS
from pipelines.prepare.options.config import LayoutConfig, SourceConfig
from pipelines.prepare.sources.columns.extraction import Inputs
from tfrecord_io.errors import ConfigError

__all__ = ["BatchEncoder", "Builder", "Encoded", "Layout", "LayoutContext", "permuted"]

LAYOUTS: dict[str, Layout] = {
    "pad": PAD,
    "concat": CONCAT,
    "pack": PACK,
    "seq2seq": SEQ2SEQ,
    "tokens": TOKENS,
    "qa": QA,
    "chat": CHAT,
    "preference": PREFERENCE,
}


def manifest_entry(options: LayoutConfig, *, length: int) -> dict[str, Any]:
    """Return the layout's manifest entry: its name, the longest record's `length`, options unlike their defaults."""
    facts = {"name": options.name, "max_length": length, "one_record": layout_of(options).one_record}
    return {**facts, **options.non_default_options()}


def inputs_of(options: LayoutConfig, source: SourceConfig) -> Inputs:
    """Return the names of the columns to tokenize. Raises: ConfigError if `source` names columns that do not fit."""
    layout = layout_of(options)
    if layout.joins_rows and (source.label_column or source.keep_columns):
        flag = "--pack-rows" if options.pack_rows else f"--layout {options.name}"
        raise ConfigError(
            f"{flag} with --label-column or --keep-column: a record holds several rows, so it has no label of its own",
            remedy=f"leave out --label-column and --keep-column, or leave out {flag}",
        )
    inputs = layout.inputs(source)
    return dataclasses.replace(inputs, joins_pairs=bool(inputs.finder) and options.chat_template is None)


def open_encoder(options: LayoutConfig, **fields: Any) -> BatchEncoder:
    """Open the encoder of the layout that `options` selects. `fields`: the fields of LayoutContext, except `layout`."""
    return layout_of(options).open_encoder(LayoutContext(layout=options, **fields))


def layout_of(options: LayoutConfig) -> Layout:
    """Return the layout that `options` selects, or its variant for --stride, --pack-rows or --learn each."""
    if options.name == "pad" and options.stride is not None:
        return WINDOWS
    if options.pack_rows:
        return PACKED_CHAT
    return ANSWERS if options.learn == "each" else LAYOUTS[options.name]
