"""Fields of structs by a dot: wherever a column is named, with only their own bytes read."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from pipelines.prepare.sources.parquet import row_groups, stored_columns
from pipelines.prepare.sources.resolve.features import columns_of
from tests import building
from tests.prepare.sources.stored import data_file, in_place, parquet
from tfrecord_io.errors import SourceError

PAIRS = [{"en": "The sun.", "de": "Die Sonne."}, {"en": "A bird.", "de": "Ein Vogel."}, {"en": "Ice.", "de": "Eis."}]
ROWS = [{"translation": pair, "meta": {"label": name, "id": 5}} for pair, name in zip(PAIRS, "aba", strict=True)]
TABLE = pa.table({"t": pa.array([{"en": f"row {n}", "x": {"y": n}} if n % 5 else None for n in range(40)])})


@pytest.mark.parametrize("name", ["t.en", "t.x.y", "t.x"])
def test_a_field_is_what_arrow_flattens_and_null_in_a_null_struct(name: str, tmp_path: Path) -> None:
    groups = in_place(parquet(tmp_path / "a.parquet", TABLE))
    pieces = groups.pieces([(3, 27)])
    read = list(row_groups.read_rows(pieces, [name], types=TABLE.schema, addresses={}))
    flat = TABLE.flatten().flatten() if name == "t.x.y" else TABLE.flatten()
    assert pa.Table.from_batches([batch for _, batch in read])[name].to_pylist() == flat[name].to_pylist()[3:27]


def test_other_fields_of_a_parquet_struct_are_not_decoded(tmp_path: Path) -> None:
    table = pa.table({"t": [{"en": f"row {n}", "de": f"Zeile {n}"} for n in range(20)]})
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    path = tmp_path / "a.parquet"
    parquet(path, table, **options)
    path.write_bytes(path.read_bytes().replace(b"Zeile 13", b"Seile 13"))
    pieces = in_place(data_file(path)).pieces([(10, 20)])
    [(_, batch)] = row_groups.read_rows(pieces, ["t.en"], types=table.schema, addresses={})
    assert batch.to_pylist() == [{"t.en": f"row {n}"} for n in range(10, 20)]
    with pytest.raises(SourceError, match="cannot be decoded"):
        list(row_groups.read_rows(pieces, ["t.de"], types=table.schema, addresses={}))


def test_bytes_and_nulls_are_counted_for_the_fields_that_are_read(tmp_path: Path) -> None:
    table = pa.table({"t": [{"en": "a", "de": "b" * 100}, None, {"en": None, "de": "c" * 100}]})
    whole, field = (in_place(parquet(tmp_path / "a.parquet", table), columns=[name]) for name in ("t", "t.en"))
    assert field.num_bytes.sum() < whole.num_bytes.sum() / 2
    assert field.nulls["t.en"].tolist() == [2]


def test_a_columns_own_name_comes_first() -> None:
    table = pa.table({"a": [{"b": "field", "b.c": "inner"}], "a.b": ["own"], "a.b.c": [{"d": 1}]})
    columns = [stored_columns.column_of(table, name) for name in ("a.b", "a.b.c.d", "a.c", "b")]
    assert [column and column.to_pylist() for column in columns] == [["own"], [1], None, None]
    assert [*columns_of(table.schema).with_fields()] == ["a", "a.b", "a.b.c", "a.b.c.d"]


def test_a_class_label_inside_a_struct_keeps_its_names() -> None:
    held = datasets.Features({"meta": {"label": datasets.ClassLabel(names=["no", "yes"])}})
    assert columns_of(held.arrow_schema).with_fields()["meta.label"].classes == ("no", "yes")


@pytest.mark.slow
def test_nested_columns_give_the_records_of_flat_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, dict[str, Any]]] = [
        {
            "translation": {"en": f"Bird {number}.", "de": f"Vogel {number}."},
            "meta": {"label": "ab"[number % 2], "id": number},
        }
        for number in range(20)
    ]
    flat = building.source(tmp_path / "flat", train=[{**row["translation"], **row["meta"]} for row in rows])
    place = building.source(tmp_path / "nested", train=rows)
    (tmp_path / "same.py").write_text("def rows(table):\n    return table\n")
    monkeypatch.chdir(tmp_path)
    shared: dict[str, Any] = {"layout": "seq2seq", "target_length": 16, "name": "d", "hold_out": "validation=50%"}
    shared["tokenizer"] = building.tokenizer("translations")
    names = {"text_column": "en", "target_column": "de", "label_column": "label", "keep_column": "id"}
    one = building.built(flat, **shared, **names)
    places = dict(zip(names, ("translation.en", "translation.de", "meta.label", "meta.id"), strict=True))
    other = building.built(place, **shared, map="same:rows", **places)
    for split in ("train", "validation"):
        ours, others = building.read_rows(one, split), building.read_rows(other, split)
        assert {name: ours[name].tolist() for name in sorted(ours)} == {
            name.removeprefix("meta."): others[name].tolist() for name in sorted(others)
        }
    assert building.command("verify", other).status == 0


def test_a_field_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    place = building.source(tmp_path / "d", train=ROWS)
    outcome = building.command("plan", place, "--tokenizer", building.tokenizer(), "--text-column", "translation.fr")
    cause, remedy = outcome.error
    assert cause == "split 'train' has no column 'translation.fr'"
    assert "translation.en, translation.de, meta.label, meta.id" in remedy
    outcome = building.command("plan", place, "--tokenizer", building.tokenizer(), "--text-column", "translation")
    assert outcome.error[1] == "choose another --text-column: translation.en, translation.de, meta.label"
