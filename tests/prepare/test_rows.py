"""Rows are, bit for bit, what `tokenizer(text[, pair], truncation=..., max_length=L, padding="max_length")` gives.

The expected side is always `transformers` itself, called as a batch with the texts of the rows that can be made.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers, processors

from pipelines.prepare import tokenization
from pipelines.prepare.config import Side, TokenizerConfig, Truncation
from pipelines.prepare.rows import EncodedRows, ReferenceRows, TemplateRows, open_rows, pad_like
from pipelines.prepare.runs import id_dtype
from tests import texts
from tests.tokenizers_zoo import FAST_KINDS, KINDS, SLOW_KINDS, Zoo
from tfrecord_io.errors import ColumnError, ConfigError

SIDES: tuple[Side, Side] = ("left", "right")
SINGLE: tuple[Truncation, ...] = ("longest_first", "only_first", "do_not_truncate")
PAIR: tuple[Truncation, ...] = (*SINGLE, "only_second")
TEXTS = [*texts.HOSTILE, *texts.sentences(12, seed=1), *texts.mutated(12, seed=2)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One way to ask for rows; `over` is L minus the number of special tokens, or minus nothing where that is big."""

    truncation_side: Side
    padding_side: Side
    truncation: Truncation
    pair: bool
    length: int


def _cases(tokenizer: Any, sides: tuple[Side, Side]) -> Iterator[Case]:
    """Every strategy at every length: just above the special tokens, odd, 64 and 512."""
    for pair in (False, True):
        special = tokenizer.num_special_tokens_to_add(pair=pair)
        for truncation, length in itertools.product(PAIR if pair else SINGLE, (special + 1, special + 2, 33, 64, 512)):
            yield Case(
                truncation_side=sides[0], padding_side=sides[1], truncation=truncation, pair=pair, length=length
            )


def _columns(rows: Sequence[str], *, pair: bool) -> list[list[str]]:
    """One column, or two in which each text meets another one, and empty texts meet each other and long ones."""
    if not pair:
        return [list(rows)]
    longest = max(rows, key=len)
    return [[*rows, "", "", longest], [*rows[7:], *rows[:7], "", longest, ""]]


def _dtype(tokenizer: Any, files: tokenization.Files) -> np.dtype:
    return id_dtype(tokenization.facts(tokenizer, name="t", files=files).vocab_size)


def _expected(tokenizer: Any, columns: list[list[str]], *, length: int, truncation: Truncation) -> dict[str, Any]:
    options = {"max_length": length, "padding": "max_length", "verbose": False}
    return dict(tokenizer(*columns, truncation=truncation, **options))


def _chosen(columns: list[list[str]], rows: np.ndarray) -> list[list[str]]:
    return [[column[index] for index in rows] for column in columns]


def _is_refused(tokenizer: Any, columns: list[list[str]], *, length: int, truncation: Truncation) -> bool:
    """Whether `transformers` fails, or leaves a row longer than it may be."""
    try:
        encoded = _expected(tokenizer, columns, length=length, truncation=truncation)
    except Exception as error:
        assert "Truncation error" in str(error)
        return True
    return len(encoded["input_ids"][0]) > length


def _check(tokenizer: Any, rows: EncodedRows, columns: list[list[str]], case: Case) -> None:
    options: Any = {"length": case.length, "truncation": case.truncation}
    possible = np.flatnonzero(~rows.impossible)
    padded = pad_like(tokenizer, rows, length=case.length)
    expected = _expected(tokenizer, _chosen(columns, possible), **options)
    assert padded.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(padded[name][possible], np.array(values, np.int32), err_msg=f"{name} {case}")
    # A few are enough: what is impossible follows from two lengths.
    refused = np.flatnonzero(rows.impossible)
    for index in refused[:: max(1, len(refused) // 3)]:
        assert _is_refused(tokenizer, _chosen(columns, np.array([index])), **options), case
