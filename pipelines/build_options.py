"""Keyword arguments of `build` and `plan`, for editors and type checkers."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

from pipelines.prepare.options.config import Compression, EngineName, Side, SpecialTokens, Truncation
from pipelines.prepare.options.layout_config import LayoutName, Learn, LearnNot, LongDocuments, Remainder

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
Texts = str | Sequence[str]
# A function from a pyarrow.Table to a table or a mask, or its name.
Function = str | Callable[[Any], Any]
Functions = Function | Sequence[Function]


class BuildOptions(TypedDict, total=False):
    """Options that `build` and `plan` share. None stands for the default of an option."""

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
    system_column: str | None
    prompt_column: str | None
    completion_column: str | None
    chosen_column: str | None
    rejected_column: str | None
    target_column: str | None
    words_column: str | None
    tags_column: str | None
    answers_column: str | None
    map: Functions | None
    filter: Functions | None
    # Tokenizer
    tokenizer_revision: str | None
    truncation_side: Side | None
    padding_side: Side | None
    # Layout
    layout: LayoutName | None
    max_length: int | None
    truncation: Truncation | None
    bucket_lengths: str | Sequence[int] | None
    stride: int | None
    special_tokens: SpecialTokens | None
    remainder: Remainder | None
    segments: bool | None
    long_documents: LongDocuments | None
    most_documents: int | None
    fim_rate: float | None
    fim_spm_rate: float | None
    fim_tokens: str | None
    chat_template: Path | None  # a name such as chatml, or a file
    chat_date: str | None
    chat_option: Texts | None
    learn: Learn | None
    learn_whole_turns: bool | None
    learn_not: LearnNot | None
    pack_rows: bool | None
    target_length: int | None
    input_prefix: str | None
    label_all_tokens: bool | None
    # Output and run
    name: str | None
    shard_size: str | int | None
    compression: Compression | None
    engine: EngineName | None
    seed: int | None
    shuffle: bool | None
    max_error_rate: float | None
    workers: int | None
    resume: bool | None
    overwrite: bool | None
    append: bool | None
