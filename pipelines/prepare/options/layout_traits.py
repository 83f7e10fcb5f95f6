"""Traits of each layout that options depend on. A new layout is a line here, a file in `layouts`, and a line there.

The options that only some layouts take name them: `layouts` of their fields in `LayoutConfig` and `SourceConfig`.
"""

from __future__ import annotations

import dataclasses

__all__ = ["LAYOUT_TRAITS", "LayoutTraits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutTraits:
    """What a layout stores and joins.

    `values_per_token` is the least number of values that a record stores for each token position. A layout that
    `joins_documents` takes one text column and no labels, since a row holds parts of many documents.
    """

    values_per_token: int
    joins_documents: bool = False


LAYOUT_TRAITS = {
    "pad": LayoutTraits(values_per_token=2),
    "concat": LayoutTraits(values_per_token=1, joins_documents=True),
    "pack": LayoutTraits(values_per_token=3, joins_documents=True),
    "chat": LayoutTraits(values_per_token=3),
    "seq2seq": LayoutTraits(values_per_token=2),
    "tokens": LayoutTraits(values_per_token=4),
    "qa": LayoutTraits(values_per_token=4),
}
