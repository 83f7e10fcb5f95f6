"""Layouts: what becomes of rows of text, one module for each. `LAYOUTS` are all of them, by name.

pad       a row of text, or a pair, becomes one record, or with --stride several
qa        so does a question with a window of its context
tokens    so do the words of a row, with a tag for each
seq2seq   so does a row with what is to be generated from it
concat    documents are joined and cut at every L-th token
pack      whole documents side by side
chat      conversations become records, or stand side by side
"""

from __future__ import annotations

from pipelines.prepare.layouts.base import BatchEncoder, Builder, Encoded, Layout, LayoutContext, permuted
from pipelines.prepare.layouts.buckets import LengthGroup, length_groups
from pipelines.prepare.layouts.chat import CHAT, PACKED_CHAT
from pipelines.prepare.layouts.concat import CONCAT
from pipelines.prepare.layouts.pack import PACK
from pipelines.prepare.layouts.pad import PAD
from pipelines.prepare.layouts.qa import QA
from pipelines.prepare.layouts.seq2seq import SEQ2SEQ
from pipelines.prepare.layouts.tokens import TOKENS
from pipelines.prepare.layouts.windows import WINDOWS
from pipelines.prepare.options.config import LayoutConfig

__all__ = [
    "LAYOUTS",
    "BatchEncoder",
    "Builder",
    "Encoded",
    "Layout",
    "LayoutContext",
    "LengthGroup",
    "layout_of",
    "length_groups",
    "permuted",
]

LAYOUTS: dict[str, Layout] = {
    "pad": PAD,
    "concat": CONCAT,
    "pack": PACK,
    "seq2seq": SEQ2SEQ,
    "tokens": TOKENS,
    "qa": QA,
    "chat": CHAT,
}


def layout_of(options: LayoutConfig) -> Layout:
    """The layout that was asked for."""
    if options.name == "pad" and options.stride is not None:
        return WINDOWS
    return PACKED_CHAT if options.pack_rows else LAYOUTS[options.name]
