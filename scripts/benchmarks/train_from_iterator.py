"""Trains a tokenizer as the documentation of `tokenizers` does: python -m scripts.benchmarks.train_from_iterator.

    KIND FOLDER VOCAB_SIZE OUTPUT      a kind of `prep-tfrecords tokenizer`; FOLDER has Parquet files with a column text

Normalizer, pre-tokenizer and special tokens are those of the kind's own style, so that both learn from the same words.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any, cast

import pyarrow.parquet as pq
from tokenizers import models, trainers

from pipelines.prepare.options.tokenizer_options import STYLES_OF, Kind
from pipelines.prepare.tokenizer_training.styles import StyleOptions, Template, template_of


def main(arguments: list[str]) -> None:
    """Trains and saves tokenizer.json to OUTPUT."""
    kind, folder, vocab_size, output = cast(Kind, arguments[0]), arguments[1], int(arguments[2]), arguments[3]
    template = template_of(STYLES_OF[kind][0], kind, StyleOptions())
    tokenizer = template.splitter()
    tokenizer.model, trainer = _model(template, vocab_size)
    tokenizer.train_from_iterator(_texts(pathlib.Path(folder)), trainer)
    tokenizer.save(output)


def _model(template: Template, vocab_size: int) -> tuple[Any, Any]:
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(template.given),
        "show_progress": False,
    }
    if template.kind == "unigram":
        unknown = template.roles["unk_token"]
        return models.Unigram(), trainers.UnigramTrainer(unk_token=unknown, **options)
    if template.kind == "wordpiece":
        return models.WordPiece(unk_token=template.roles["unk_token"]), trainers.WordPieceTrainer(**options)
    return models.BPE(**template.model), trainers.BpeTrainer(initial_alphabet=template.alphabet, **options)


def _texts(folder: pathlib.Path) -> Iterator[list[str]]:
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(1000, columns=["text"]):
            yield batch["text"].to_pylist()


if __name__ == "__main__":
    main(sys.argv[1:])
