"""Rows are, bit for bit, what `tokenizer(text[, pair], truncation=..., max_length=L)` gives.

The expected side is always `transformers` itself, called as a batch with the texts of the rows that can be made.
"""

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, processors

from pipelines.prepare.options.config import Side, TokenizerConfig, Truncation
from pipelines.prepare.tokenize import tokenization
from pipelines.prepare.tokenize.ragged import id_dtype
from pipelines.prepare.tokenize.text_rows import open_rows
from tests.qualifying import comparing
from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, KINDS, Zoo
from tfrecord_io.errors import ConfigError

# Sides of truncation and padding, room for text in short rows, and the length of longer ones.
OPPOSITES: tuple[tuple[Side, Side, int, int], ...] = (("left", "right", 1, 33), ("right", "left", 2, 160))
SINGLE: tuple[Truncation, ...] = ("longest_first", "only_first", "do_not_truncate")
PAIR: tuple[Truncation, ...] = (*SINGLE, "only_second")
TEXTS = [*texts.HOSTILE, *texts.sentences(12, seed=1), *texts.mutated(12, seed=2)]
# `transformers` makes pieces of all that it cuts away, of pairs quadratically many, so long texts need long rows.
LETTERS_PER_ROOM = 12
SHORT_TEXTS = [text for text in TEXTS if len(text) < 400]
# Of a text that ends in its EOS token.
BYT5_WARNS = pytest.mark.filterwarnings("ignore:This sequence already has </s>:UserWarning")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One way to ask for rows: `room` is L without the special tokens."""

    truncation: Truncation
    pair: bool
    length: int
    room: int


def _cases(tokenizer: Any, *, rooms: tuple[int, ...] = (), lengths: tuple[int, ...] = ()) -> Iterator[Case]:
    for pair in (False, True):
        special = tokenizer.num_special_tokens_to_add(pair=pair)
        sizes = {*(special + room for room in rooms), *lengths}
        for truncation, length in itertools.product(PAIR if pair else SINGLE, sorted(sizes)):
            yield Case(truncation=truncation, pair=pair, length=length, room=length - special)


def _columns(texts: list[str], *, pair: bool) -> list[list[str]]:
    """Return one column; or two, with texts paired with others, and empty texts with empty and long ones."""
    if not pair:
        return [texts]
    longest = max(texts, key=len)
    return [[*texts, "", "", longest], [*texts[7:], *texts[:7], "", longest, ""]]


def _resolve(path: Path, *, truncation_side: Side | None = None, padding_side: Side | None = None) -> tuple[Any, Any]:
    config = TokenizerConfig(name=str(path), truncation_side=truncation_side, padding_side=padding_side)
    tokenizer, files = tokenization.resolve(config)
    return tokenizer, id_dtype(tokenization.facts(tokenizer, name="tokenizer", files=files).vocab_size)


def _arrow(columns: list[list[str]]) -> list[pa.Array]:
    return [pa.array(column, pa.string()) for column in columns]


def _is_refused(tokenizer: Any, columns: list[list[str]], *, length: int, truncation: Truncation) -> bool:
    """Whether `transformers` fails at a row, or leaves it longer than it may be."""
    try:
        encoded = tokenizer(*columns, truncation=truncation, max_length=length, verbose=False)
    except Exception as error:
        return "Truncation error" in str(error)
    return len(encoded["input_ids"][0]) > length


def _compare(tokenizer: Any, dtype: Any, case: Case, *, engine: str | None, among: list[str]) -> None:
    rows = open_rows(tokenizer, length=case.length, truncation=case.truncation, pair=case.pair, dtype=dtype)
    assert rows.name == (engine or rows.name)
    columns = _columns([text for text in among if len(text) <= LETTERS_PER_ROOM * case.room + 12], pair=case.pair)
    options: dict[str, Any] = {"length": case.length, "truncation": case.truncation}
    assert comparing.wrong_rows(rows, tokenizer, columns, **options) == []
    encoded = rows.encode(_arrow(columns))
    # A few are enough: whether a row is impossible follows from two lengths.
    refused = np.flatnonzero(encoded.impossible)
    for index in refused[:: max(1, len(refused) // 3)]:
        assert _is_refused(tokenizer, [[column[index]] for column in columns], **options)
    if rows.only_type is not None and encoded.types is not None:
        assert (encoded.types == rows.only_type).all()


@BYT5_WARNS
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_strategy_are_those_of_transformers(zoo: Zoo, kind: str) -> None:
    # All texts for two kinds. The others differ in their special tokens, which no text changes.
    among = TEXTS if kind in ("wordpiece_cased", "truncation_left") else TEXTS[::3]
    engine = "hf" if kind in FAST_KINDS else "reference"
    for at, (truncation_side, padding_side, room, length) in enumerate(OPPOSITES):
        tokenizer, dtype = _resolve(zoo.path(kind), truncation_side=truncation_side, padding_side=padding_side)
        assert (tokenizer.truncation_side, tokenizer.padding_side) == (truncation_side, padding_side)
        for case in _cases(tokenizer, rooms=(room,), lengths=(length,)):
            _compare(tokenizer, dtype, case, engine=engine, among=among[at::2])


def _edited(zoo: Zoo, kind: str, folder: Path, edit: Callable[[Tokenizer], None]) -> Path:
    shutil.copytree(zoo.path(kind), folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    edit(backend)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def _swap_the_pair(backend: Tokenizer) -> None:
    ends = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $B:1 [SEP] $A:0 [SEP]", special_tokens=ends
    )


def _repeat_the_text(backend: Tokenizer) -> None:
    sep = ("[SEP]", backend.token_to_id("[SEP]"))
    backend.post_processor = processors.TemplateProcessing(single="$A [SEP] $A:1", special_tokens=[sep])


def _add_in_two_steps(backend: Tokenizer) -> None:
    cls, sep = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    first = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[cls])
    backend.post_processor = processors.Sequence(
        [first, processors.TemplateProcessing(single="$A [SEP]", special_tokens=[sep])]
    )


def test_a_template_that_swaps_the_texts_of_a_pair_falls_back_to_transformers(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer, dtype = _resolve(_edited(zoo, "wordpiece_cased", tmp_path / "edited", _swap_the_pair))
    for case in _cases(tokenizer, lengths=(24,)):
        _compare(tokenizer, dtype, case, engine="reference" if case.pair else "hf", among=SHORT_TEXTS)


# Added in two steps, the tokens look like a template until a text is cut: then the row is not the one expected of one.
@pytest.mark.parametrize(("edit", "engine"), [(_repeat_the_text, "reference"), (_add_in_two_steps, None)])
def test_other_post_processors_give_the_rows_of_transformers(
    zoo: Zoo, tmp_path: Path, edit: Callable[[Tokenizer], None], engine: str | None
) -> None:
    tokenizer, dtype = _resolve(_edited(zoo, "wordpiece_cased", tmp_path / "edited", edit))
    for case in (case for case in _cases(tokenizer, lengths=(24,)) if not case.pair):
        _compare(tokenizer, dtype, case, engine=engine, among=SHORT_TEXTS)


@pytest.mark.parametrize("pair", [False, True])
def test_a_tokenizer_whose_python_layer_changes_texts_falls_back_to_it(zoo: Zoo, pair: bool) -> None:
    tokenizer, dtype = _resolve(zoo.path("wordpiece_cased"))
    kind = type(tokenizer)

    class Peculiar(kind):  # type: ignore[misc, valid-type]
        def __call__(self, *columns: Any, **options: Any) -> Any:
            return super().__call__(*([text.replace("a", "the dog") for text in texts] for texts in columns), **options)

    tokenizer.__class__ = Peculiar
    case = Case(truncation="longest_first", pair=pair, length=24, room=21)
    _compare(tokenizer, dtype, case, engine="reference", among=SHORT_TEXTS)


def _truncate_and_pad(backend: Tokenizer) -> None:
    backend.enable_truncation(5, direction="left")
    backend.enable_padding(length=9, pad_token="[PAD]", pad_id=0)


def test_truncation_and_padding_stored_in_a_tokenizer_file_change_nothing(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer, dtype = _resolve(_edited(zoo, "wordpiece_cased", tmp_path / "edited", _truncate_and_pad))
    for case in _cases(tokenizer, lengths=(24,)):
        _compare(tokenizer, dtype, case, engine="hf", among=SHORT_TEXTS)


def test_encoding_neither_sees_nor_touches_what_a_call_of_the_tokenizer_left_set(zoo: Zoo) -> None:
    tokenizer, dtype = _resolve(zoo.path("wordpiece_cased"))
    rows = open_rows(tokenizer, length=64, truncation="longest_first", pair=False, dtype=dtype)
    before = rows.encode(_arrow([SHORT_TEXTS])).ids
    tokenizer(["a b c d e f"], truncation=True, max_length=3, padding="max_length")
    left_set = tokenizer.backend_tokenizer.truncation
    assert before.ids.tolist() == rows.encode(_arrow([SHORT_TEXTS])).ids.ids.tolist()
    assert tokenizer.backend_tokenizer.truncation == left_set


@BYT5_WARNS
@pytest.mark.parametrize("truncation", PAIR)
@pytest.mark.parametrize("kind", ["wordpiece_cased", "unigram_left", "slow_byt5"])
def test_full_lengths_and_tokens_cut_are_those_of_the_rows_without_truncation(
    zoo: Zoo, kind: str, truncation: Truncation
) -> None:
    tokenizer, dtype = _resolve(zoo.path(kind))
    columns = _columns(SHORT_TEXTS, pair=True)
    rows = open_rows(tokenizer, length=48, truncation=truncation, pair=True, dtype=dtype).encode(_arrow(columns))
    whole = [len(ids) for ids in tokenizer(*columns, verbose=False)["input_ids"]]
    assert rows.full_lengths[~rows.impossible].tolist() == list(itertools.compress(whole, ~rows.impossible))
    assert rows.tokens_cut == sum(max(0, whole[row] - 48) for row in np.flatnonzero(~rows.impossible))
    assert (rows.tokens_cut == 0) == (truncation == "do_not_truncate")


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("kind", ["wordpiece_cased", "byte_bpe", "slow_byt5"])
def test_no_texts_give_no_rows(zoo: Zoo, kind: str, pair: bool) -> None:
    tokenizer, dtype = _resolve(zoo.path(kind))
    rows = open_rows(tokenizer, length=32, truncation="longest_first", pair=pair, dtype=dtype)
    none = rows.encode(_arrow([[], []] if pair else [[]]))
    assert len(none.ids) == len(none.full_lengths) == len(none.impossible) == none.tokens_cut == 0


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("kind", ["wordpiece_cased", "unigram_left", "slow_byt5"])
def test_a_length_without_room_beside_the_special_tokens_is_refused(zoo: Zoo, kind: str, pair: bool) -> None:
    tokenizer, dtype = _resolve(zoo.path(kind))
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    with pytest.raises(ConfigError, match=f"--max-length {special} leaves no room.*--max-length {special + 1} or"):
        open_rows(tokenizer, length=special, truncation="longest_first", pair=pair, dtype=dtype)
    open_rows(tokenizer, length=special + 1, truncation="longest_first", pair=pair, dtype=dtype)


@BYT5_WARNS
def test_a_row_that_a_missing_special_token_shortens_still_counts_as_cut(zoo: Zoo) -> None:
    tokenizer, dtype = _resolve(zoo.path("slow_byt5"))
    rows = open_rows(tokenizer, length=6, truncation="longest_first", pair=False, dtype=dtype)
    encoded = rows.encode(_arrow([["abcd</s>efgh"]]))
    assert len(encoded.ids.ids) == 5, "ByT5 adds no EOS behind an EOS"
    assert encoded.tokens_cut == len(tokenizer("abcd</s>efgh")["input_ids"]) - 5
