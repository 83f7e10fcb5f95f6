"""Keyword arguments of `build` and `plan`, as types for editors and type checkers.

They are the options of `prep-tfrecords build`, which has their descriptions and defaults; a test compares the two.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

Path = str | os.PathLike[str]
# One value, or several for an option that the command line takes repeatedly.
Paths = Path | Sequence[Path]
Texts = str | Sequence[str]
# Its name, or the function itself, from a pyarrow.Table to another or to a mask.
Function = str | Callable[[Any], Any]
Functions = Function | Sequence[Function]


class BuildOptions(TypedDict, total=False):
    """Options of a build that `build` and `plan` both take; None is the default of each."""

    # Source
    config: str | None
    revision: str | None
    format: str | None
    data_files: Paths | None
    source_option: Texts | None
    sample_by: Literal["line", "paragraph", "document"] | None
    split: Texts | None
    hold_out: Texts | None
    hold_out_by: str | None
    dedup: Literal["exact", "verbatim"] | None
    dedup_across_splits: bool | None
    decontaminate: Paths | None
    decontaminate_words: int | None
    text_column: Texts | None
    label_column: str | None
    label_classes: bool | None
    keep_column: Texts | None
    limit: int | None
    messages_column: str | None
    tools_column: str | None
    target_column: str | None
    words_column: str | None
    tags_column: str | None
    answers_column: str | None
    map: Functions | None
    filter: Functions | None
    # Tokenizer
    tokenizer_revision: str | None
    truncation_side: Literal["left", "right"] | None
    padding_side: Literal["left", "right"] | None
    # Layout
    layout: Literal["pad", "concat", "pack", "chat", "seq2seq", "tokens", "qa"] | None
    max_length: int | None
    truncation: Literal["longest_first", "only_first", "only_second", "do_not_truncate"] | None
    bucket_lengths: str | Sequence[int] | None
    stride: int | None
    special_tokens: Literal["eos", "bos-eos", "tokenizer", "none"] | None
    remainder: Literal["pad", "drop"] | None
    long_documents: Literal["split", "drop"] | None
    chat_template: Path | None
    chat_date: str | None
    chat_option: Texts | None
    learn: Literal["all", "last", "each"] | None
    learn_whole_turns: bool | None
    pack_rows: bool | None
    target_length: int | None
    input_prefix: str | None
    label_all_tokens: bool | None
    # Output and run
    name: str | None
    shard_size: str | int | None
    compression: Literal["none", "gzip"] | None
    engine: Literal["auto", "hf", "wordpiece", "unigram", "fastokens", "gigatoken"] | None
    seed: int | None
    shuffle: bool | None
    max_error_rate: float | None
    workers: int | None
    resume: bool | None
    overwrite: bool | None
    append: bool | None
