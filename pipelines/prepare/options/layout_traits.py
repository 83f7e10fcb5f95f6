"""What the options room knows of each layout. A new layout is a line here, a file in `layouts`, and a line there."""

from __future__ import annotations

import dataclasses

__all__ = ["LAYOUT_COLUMNS", "LAYOUT_OPTIONS", "LAYOUT_TRAITS", "LayoutTraits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutTraits:
    """The options that belong to a layout: fields of LayoutConfig, and `columns`, fields of SourceConfig.

    `values_per_token` is the least number of values that a record stores for each token position. A layout that
    `joins_documents` takes one text column and no labels, since a row holds parts of many documents.
    """

    options: tuple[str, ...]
    values_per_token: int
    columns: tuple[str, ...] = ()
    joins_documents: bool = False


LAYOUT_TRAITS = {
    "pad": LayoutTraits(options=("truncation", "stride", "bucket_lengths"), values_per_token=2),
    "concat": LayoutTraits(options=("remainder", "special_tokens"), values_per_token=1, joins_documents=True),
    "pack": LayoutTraits(options=("special_tokens", "long_documents"), values_per_token=3, joins_documents=True),
    "chat": LayoutTraits(
        options=("pack_rows", "chat_date", "chat_template"),
        columns=("messages_column", "tools_column"),
        values_per_token=3,
    ),
    "seq2seq": LayoutTraits(
        options=("truncation", "target_length", "input_prefix"), columns=("target_column",), values_per_token=2
    ),
    "tokens": LayoutTraits(
        options=("truncation", "label_all_tokens"), columns=("words_column", "tags_column"), values_per_token=4
    ),
    "qa": LayoutTraits(options=("stride",), columns=("answers_column",), values_per_token=4),
}


def _layouts_by_option(field: str) -> dict[str, tuple[str, ...]]:
    options = dict.fromkeys(option for traits in LAYOUT_TRAITS.values() for option in getattr(traits, field))
    return {
        option: tuple(name for name, traits in LAYOUT_TRAITS.items() if option in getattr(traits, field))
        for option in options
    }


# The layouts that take each field of LayoutConfig, and each field of SourceConfig, that not all take.
LAYOUT_OPTIONS = _layouts_by_option("options")
LAYOUT_COLUMNS = _layouts_by_option("columns")
