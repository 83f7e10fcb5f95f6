"""What columns hold is what `datasets` says of the same files."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, LargeList, List, Value

from pipelines.prepare.sources.formats.features import Column, Columns, columns_of
from tfrecord_io.errors import SourceError

CHAT = [[{"role": "user", "content": "hi"}], []]
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))

PLAIN: dict[str, pa.Array] = {
    "string": pa.array(["a", None]),
    "large_string": pa.array(["a", "b"], pa.large_string()),
    "string_view": pa.array(["a", "b"], pa.string_view()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    "large_dictionary": pa.array(["a", "b"], pa.large_string()).dictionary_encode(),
    "list_of_dictionaries": pa.array([["a"], []], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "integers": pa.array([1, 2], pa.uint8()),
    "bool": pa.array([True, None]),
    "floats": pa.array([0.5, 1.5], pa.float32()),
    "halves": pa.array([0.5, 1.5], pa.float16()),
    "double": pa.array([0.5, 1.5]),
    "timestamp": pa.array([datetime.datetime(2024, 1, 1)] * 2),
    "zoned": pa.array([0, 1], pa.timestamp("ms", "Europe/Berlin")),
    "date": pa.array([datetime.date(2024, 1, 1)] * 2),
    "time": pa.array([1, 2], pa.time32("s")),
    "duration": pa.array([1, 2], pa.duration("us")),
    "decimal": pa.array([decimal.Decimal("1.5"), None], pa.decimal128(10, 2)),
    "binary": pa.array([b"a", b""]),
    "fixed_binary": pa.array([b"abc", b"def"], pa.binary(3)),
    "list": pa.array([[1, 2], None]),
    "large_list": pa.array([["a"], []], pa.large_list(pa.string())),
    "vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": 1, "b": {"c": "x"}}, None]),
    "chat": pa.array(CHAT, MESSAGES),
    "never_null": pa.StructArray.from_arrays([pa.array([1, 2])], fields=[pa.field("a", pa.int64(), nullable=False)]),
    "items_never_null": pa.array([[1], []], pa.list_(pa.field("element", pa.int64(), nullable=False))),
    "null": pa.nulls(2),
    "json": pa.array(["{}", "[1]"]).cast(pa.json_()),
    "words": pa.array([{"de": "ja", "en": "yes"}] * 2),
}

OF_DATASETS: dict[str, Any] = {
    "class": ClassLabel(names=["neg", "it's"]),
    "tags": List(ClassLabel(names=["O", "PER"])),
    "long_tags": LargeList(ClassLabel(names=["O", "PER"])),
    "vector": List(Value("float32"), length=2),
    "zoned": Value("timestamp[us, tz=UTC]"),
    "decimal": Value("decimal128(10, 2)"),
    "chat": List({"role": Value("string"), "label": ClassLabel(names=["a", "b"])}),
    "struct": {"a": Value("int32"), "b": {"c": Value("large_string")}},
    "translation": datasets.Translation(languages=["en", "de"]),
    "json": datasets.Json(),
}


def expected_columns(features: Features) -> Columns:
    """The columns that have these features, as the library itself says them."""
    return Columns(
        (name, Column(kind=field.type, text=str(held), names=names_of(held), item_names=item_names_of(held)))
        for (name, held), field in zip(features.items(), features.arrow_schema, strict=True)
    )


def names_of(feature: Any) -> tuple[str, ...] | None:
    names = getattr(feature, "names", None)
    return None if names is None else tuple(names)


def item_names_of(feature: Any) -> tuple[str, ...] | None:
    """Of a feature that is a list: releases have written it in three ways."""
    return names_of(feature[0] if isinstance(feature, list) else getattr(feature, "feature", None))


def of_datasets(kind: str, path: Path) -> Columns:
    """The columns of a file that `datasets` has opened."""
    loaded = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))
    return expected_columns(loaded.features)


@pytest.mark.parametrize("name", PLAIN)
def test_a_parquet_column_is_what_datasets_says(name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"column": PLAIN[name]}), tmp_path / "a.parquet")
    assert columns_of(pq.read_schema(tmp_path / "a.parquet")) == of_datasets("parquet", tmp_path / "a.parquet")


@pytest.mark.parametrize("name", PLAIN)
def test_an_arrow_column_is_what_datasets_says(name: str, tmp_path: Path) -> None:
    table = pa.table({"column": PLAIN[name]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert columns_of(table.schema) == of_datasets("arrow", tmp_path / "a.arrow")


@pytest.mark.parametrize("name", OF_DATASETS)
def test_a_feature_in_the_metadata_is_found(name: str) -> None:
    features = Features({"column": OF_DATASETS[name]})
    assert columns_of(features.arrow_schema) == expected_columns(Features.from_arrow_schema(features.arrow_schema))


@pytest.mark.parametrize("name", OF_DATASETS)
def test_a_card_says_what_datasets_makes_of_it(name: str) -> None:
    features = Features({"column": OF_DATASETS[name]})
    schema = pa.schema([("column", pa.string())])
    assert columns_of(schema, features.to_dict()) == expected_columns(features)


def test_metadata_of_another_type_than_the_column_counts_for_nothing() -> None:
    schema = Features({"label": ClassLabel(names=["a", "b"])}).arrow_schema
    schema = pa.schema([("label", pa.string())], metadata=schema.metadata)
    assert columns_of(schema) == expected_columns(Features.from_arrow_schema(schema))
    assert columns_of(schema)["label"].names is None


@pytest.mark.parametrize("written", [b"", b"{", b"[]", b'{"info": null}', b'{"info": {"features": 3}}', b"\xff"])
def test_metadata_that_nobody_can_read_counts_for_nothing(written: bytes) -> None:
    schema = pa.schema([("text", pa.string())], metadata={b"huggingface": written})
    assert columns_of(schema)["text"].text == "Value('string')"


def test_a_card_wins_over_the_metadata_as_it_does_in_datasets(tmp_path: Path) -> None:
    stored = Features({"text": Value("string"), "label": ClassLabel(names=["a", "b"])})
    card = "---\ndataset_info:\n  features:\n  - name: label\n    dtype:\n      class_label:\n        names:\n"
    card += "          '0': bad\n          '1': good\n  - name: text\n    dtype: large_string\n---\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text(card)
    table = pa.table({"text": ["x"], "label": [1]}, schema=stored.arrow_schema)
    pq.write_table(table, tmp_path / "data" / "train.parquet")
    loaded = datasets.load_dataset(str(tmp_path / "data"), split="train", cache_dir=str(tmp_path / "cache"))
    said = {
        "label": {"names": ["bad", "good"], "_type": "ClassLabel"},
        "text": {"dtype": "large_string", "_type": "Value"},
    }
    found = columns_of(table.schema, said)
    assert found == expected_columns(loaded.features)
    assert found["label"].names == ("bad", "good")
    assert list(found) == list(loaded.features)


def test_lists_as_older_releases_wrote_them() -> None:
    written = {
        "tags": {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "Sequence"},
        "answers": {"feature": {"text": {"dtype": "string", "_type": "Value"}}, "_type": "Sequence"},
        "old": [{"dtype": "int32", "_type": "Value"}],
    }
    features = Features.from_dict(written)
    found = columns_of(pa.schema([(name, pa.string()) for name in written]), written)
    assert found.arrow_schema == features.arrow_schema
    assert found["tags"].item_names == ("O", "B")


def test_what_datasets_decodes_stays_as_it_is_stored() -> None:
    features = Features({"image": datasets.Image(), "grid": datasets.Array2D(shape=(2, 2), dtype="int32")})
    stored = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("grid", MESSAGES)])
    assert columns_of(stored, features.to_dict()).arrow_schema == stored


def test_a_card_with_other_columns_than_the_files_is_refused() -> None:
    with pytest.raises(SourceError, match=r"columns \['text'\], but their dataset card lists \['body'\]"):
        columns_of(pa.schema([("text", pa.string())]), {"body": {"dtype": "string", "_type": "Value"}})
