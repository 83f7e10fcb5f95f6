"""Words and their tags: every label stays with its word, and the tokens equal the output of `transformers`."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.layouts import BatchEncoder
from pipelines.prepare.options.config import LayoutConfig, OutputConfig, PrepareConfig, SourceConfig, TokenizerConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows, extract
from pipelines.prepare.sources.columns.labels import LabelPlan
from pipelines.prepare.tokenize.text_rows import ReferenceRows, open_rows, with_engine
from tests import building
from tests.building import built, read_manifest, read_rows
from tests.prepare.layouts import encoding
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import ColumnError, TokenizerError

LENGTH = 12
TAGS = building.REPOSITORY / "examples" / "tags"
ROWS = [json.loads(line) for line in (TAGS / "train.jsonl").read_text(encoding="utf-8").splitlines()]
INTS = LabelPlan(column="tags", kind="int")
WORDS = st.sampled_from(["the", "a", "of", "house", "river", "7", ",", "unbelievably", "", "\x00", "é", "中文"])
LISTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=8)


@functools.cache
def _encoder(zoo: Zoo, kind: str, *, every: bool = False) -> BatchEncoder:
    layout = LayoutConfig(name="tokens", max_length=LENGTH, label_all_tokens=every)
    columns = ColumnPlan(texts=(), nested={"words": "tokens", "tags": "tags"}, tags=INTS)
    return encoding.open_encoder(encoding.tokenizer(zoo, kind), layout, columns)


def _rows(lists: Sequence[Sequence[str]]) -> Rows:
    """Each word is tagged with its own number among all, from 1."""
    ends = np.cumsum([len(words) for words in lists])
    tags = [list(range(end - len(words) + 1, end + 1)) for words, end in zip(lists, ends.tolist(), strict=True)]
    nested: dict[Any, pa.Array] = {
        "words": pa.array(lists, pa.list_(pa.string())),
        "tags": pa.array(tags, pa.list_(pa.int64())),
    }
    return Rows(texts=(), arrays={}, nested=nested)


def _expected(
    tokenizer: Any, lists: Sequence[Sequence[str]], tags: list[list[int]], *, every: bool, length: int = LENGTH
) -> dict[str, Any]:
    """As written down in every guide to token classification: a label where the word changes."""
    encoded = tokenizer(
        [list(words) for words in lists],
        is_split_into_words=True,
        truncation=True,
        max_length=length,
        padding="max_length",
    )
    labels, masks = [], []
    for index, of_row in enumerate(tags):
        before, row, mask = None, [], []
        for word in encoded.word_ids(index):
            own = word is not None and (every or word != before)
            row.append(of_row[word] if own else 0)
            mask.append(int(own))
            before = word
        labels.append(row)
        masks.append(mask)
    return {**encoded, "tags": labels, "tag_mask": masks}


@pytest.mark.parametrize("kind", ["wordpiece_cased", "byte_bpe_bos", "unigram_left+left"])
@settings(max_examples=15)
@given(lists=LISTS, every=st.booleans())
def test_any_lists_of_words_come_out_as_those_of_the_tokenizer(
    zoo: Zoo, kind: str, lists: list[list[str]], every: bool
) -> None:
    rows, encoder = _rows(lists), _encoder(zoo, kind, every=every)
    assert encoder.engine != "reference"
    ours = encoding.lists(encoding.laid_out(encoder, rows))
    assert ours == _expected(encoding.tokenizer(zoo, kind), lists, rows.nested["tags"].to_pylist(), every=every)


def test_a_tokenizer_whose_words_depend_on_one_another_is_left_to_transformers(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.prepare.tokenize.text_rows.probe", lambda backend, pair: None)
    tokenizer = zoo.tokenizer("wordpiece_cased")
    dtype = np.dtype(np.int32)
    fast = open_rows(tokenizer, length=LENGTH, truncation="longest_first", dtype=dtype, words=True)
    assert with_engine(fast, tokenizer, dtype=dtype, wanted="auto") is fast
    assert isinstance(fast, ReferenceRows)
    empty = fast.encode([pa.array([], pa.list_(pa.string()))])
    assert empty.words is not None
    assert (len(empty.ids), len(empty.words)) == (0, 0)


def test_a_tokenizer_that_refuses_words_is_an_error_with_the_way_out() -> None:
    refuses = mock.Mock(is_fast=True, side_effect=AssertionError("You need add_prefix_space=True"))
    refuses.num_special_tokens_to_add.return_value = 0
    with pytest.raises(TokenizerError, match=r"does not accept lists of words: You need.*prefix_space=True\), save"):
        open_rows(refuses, length=9, truncation="longest_first", dtype=np.dtype(np.int32), words=True)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("kind", ["wordpiece_cased", "byte_bpe", "unigram", "unigram_left+left"])
def test_tokens_inside_of_a_word_have_the_inside_tag_where_there_is_one(zoo: Zoo, kind: str, every: bool) -> None:
    """Like run_ner.py of `transformers`: B-LOC has an I-LOC; B-X and O have none."""
    names = ("B-LOC", "B-X", "I-LOC", "O")
    tags = LabelPlan(column="tags", kind="class", names=names)
    columns = ColumnPlan(texts=(), nested={"words": "tokens", "tags": "tags"}, tags=tags)
    layout = LayoutConfig(name="tokens", max_length=40, label_all_tokens=every)
    tokenizer = encoding.tokenizer(zoo, kind)
    nested: dict[Any, pa.Array] = {
        "words": pa.array([["unbelievably", "unbelievably", "unbelievably", "unbelievably"]]),
        "tags": pa.array([[0, 1, 2, 3]]),
    }
    records = encoding.laid_out(
        encoding.open_encoder(tokenizer, layout, columns), Rows(texts=(), arrays={}, nested=nested)
    )
    words = tokenizer(nested["words"].to_pylist(), is_split_into_words=True, padding="max_length", max_length=40)
    of_words, inside = words.word_ids(0), [2, 1, 2, 3]
    kept = records["tag_mask"][0] == 1
    firsts = [at for at, word in enumerate(of_words) if word is not None and word not in of_words[:at]]
    expected = {at: of_words[at] if at in firsts else inside[of_words[at]] for at in np.flatnonzero(kept).tolist()}
    assert len(of_words) - of_words.count(None) > 4
    assert sorted(expected) == [at for at, word in enumerate(of_words) if word is not None and (every or at in firsts)]
    assert records["tags"][0][kept].tolist() == list(expected.values())


def _plan(kind: Any, names: tuple[str, ...] | None) -> ColumnPlan:
    label = LabelPlan(column="tags", kind=kind, names=names)
    return ColumnPlan(texts=(), nested={"words": "tokens", "tags": "tags"}, tags=label)


def test_rows_are_refused_by_reason() -> None:
    rows: list[tuple[Any, Any, str]] = [
        *((["a", "b"], [0, 1], ""), (None, [0], "words_null"), (["a"], None, "tags_null")),
        *((["a", "b"], [0], "tags_length"), (["a", None], [0, 1], "word_null"), (["a"], [None], "tag_null")),
        *((["a"], [2], "tag_out_of_range"), (["a"], [-1], "tag_out_of_range"), ([], [], "")),
    ]
    batch = pa.RecordBatch.from_pydict(
        {
            "tokens": pa.array([words for words, _, _ in rows], pa.list_(pa.string())),
            "tags": pa.array([tags for _, tags, _ in rows], pa.list_(pa.int64())),
        }
    )
    expected = [reason for _, _, reason in rows]
    for first in (0, 3):
        numbers = np.arange(first, len(rows))
        usable, reasons = extract(batch.slice(first), _plan("class", ("O", "X")), numbers=numbers)
        assert reasons.tolist() == expected[first:]
        assert usable.numbers.tolist() == [row for row in range(first, len(rows)) if not expected[row]]


def test_a_tag_that_has_no_name_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"tokens": [["a"], ["b"]], "tags": pa.array([["X"], ["Y"]])})
    usable, reasons = extract(batch, _plan("string", ("O", "X")))
    assert reasons.tolist() == ["", "tag_unknown"]
    assert usable.nested["words"].to_pylist() == [["a"]]


@pytest.mark.parametrize(
    ("feature", "tags", "kind", "names"),
    [
        (datasets.ClassLabel(names=["O", "B-X"]), [[0, 1]], "class", ("O", "B-X")),
        (datasets.Value("string"), [["O", "B-X"]], "string", ("B-X", "O", "Z")),
        (datasets.Value("int32"), [[0, 7]], "int", None),
    ],
)
def test_names_of_tags_come_from_the_feature_or_from_all_splits(
    tmp_path: Path, feature: Any, tags: list[list[Any]], kind: str, names: tuple[str, ...] | None
) -> None:
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(feature)})
    others = [["Z"]] if kind == "string" else [[0]]
    made = {
        "train": datasets.Dataset.from_dict({"tokens": [["a", "b"]], "tags": tags}, features=features),
        "test": datasets.Dataset.from_dict({"tokens": [["c"]], "tags": others}, features=features),
    }
    datasets.DatasetDict(made).save_to_disk(tmp_path / "d")
    plan = _planned(tmp_path, splits=("train",))
    assert plan.tags == LabelPlan(column="tags", kind=kind, names=names)  # type: ignore[arg-type]
    assert plan.label_names == names


@pytest.mark.parametrize("tags", [["O"], [[0.5]], [[["O"]]]])
def test_what_are_no_lists_of_tags_is_refused(tmp_path: Path, tags: list[Any]) -> None:
    building.source(tmp_path / "d", train=[{"tokens": ["a"], "tags": tags[0]}])
    with pytest.raises(ColumnError, match="expected lists of class ids or strings"):
        _planned(tmp_path)


def _planned(folder: Path, **options: Any) -> ColumnPlan:
    config = PrepareConfig(
        source=SourceConfig(dataset=str(folder / "d"), **options),
        tokenizer=TokenizerConfig(name=str(building.tokenizer())),
        output=OutputConfig(root=str(folder / "out"), name="d"),
        layout=LayoutConfig(name="tokens", max_length=LENGTH),
    )
    return building.resolved(config).job.spec.columns


def test_a_built_dataset_has_the_names_and_every_row() -> None:
    root = built(TAGS, layout="tokens", no_shuffle=True)
    facts, rows = read_manifest(root), read_rows(root, "train")
    assert facts.label_names == tuple(sorted({tag for row in ROWS for tag in row["tags"]}))
    tags = [[facts.label_names.index(tag) for tag in row["tags"]] for row in ROWS]
    words = [row["tokens"] for row in ROWS]
    assert encoding.lists(rows) == _expected(load_tokenizer(str(root)), words, tags, every=False, length=32)
    assert facts.layout == {"name": "tokens", "max_length": 32, "one_record": True}
    assert (root / "features.json").exists()
