"""A layout's encoder and its rows without a build: a tokenizer of the zoo, rows in, columns out."""

import functools
from typing import Any

import numpy as np

from pipelines.prepare.layouts import BatchEncoder, LayoutContext, layout_of
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from pipelines.prepare.tokenize import tokenization
from tests.support.tokenizers_zoo import Zoo


@functools.cache
def tokenizer(zoo: Zoo, kind: str) -> Any:
    """One of the zoo, which pads, and with `+left` behind its kind truncates on the left."""
    name, _, left = kind.partition("+")
    opened = zoo.tokenizer(name)
    opened.pad_token = opened.pad_token or opened.eos_token
    if left:
        opened.truncation_side = "left"
    return opened


def open_encoder(tokenizer: Any, layout: LayoutConfig, columns: ColumnPlan, *, engine: Any = "auto") -> BatchEncoder:
    """The layout's encoder of these columns."""
    facts, length = tokenization.facts(tokenizer, name="any", files={}), layout.max_length
    assert length is not None
    context = LayoutContext(
        tokenizer=tokenizer, facts=facts, layout=layout, length=length, columns=columns, engine=engine
    )
    return layout_of(layout).open_encoder(context)


def laid_out(encoder: BatchEncoder, *batches: Rows, seed: int | None = None) -> dict[str, np.ndarray]:
    """All records of some batches of rows, shuffled if there is a seed."""
    builder = encoder.builder()
    for rows in batches:
        builder.add(encoder.encode(rows))
    chunks = list(builder.chunks(None if seed is None else np.random.default_rng(seed)))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in (chunks[0] if chunks else {})}


def lists(columns: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in columns.items() if name != "row"}
