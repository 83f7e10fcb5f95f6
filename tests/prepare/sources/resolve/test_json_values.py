"""Values of JSON and CSV are the characters of the file, or refused, wherever the first rows have other types."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.prepare.layouts import inputs_of
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.layout_config import LayoutConfig
from pipelines.prepare.sources.columns.column_planning import plan_columns
from pipelines.prepare.sources.resolve.resolve import resolve
from tests import building
from tests.prepare.sources.stored import rows_in
from tfrecord_io.errors import PrepError

REFUSED = ["refused"]
# Name: a value as JSON, and its characters if a text column may mix it with texts.
VALUES: dict[str, tuple[str, str | None]] = {
    "date": ('"2024-02-01"', "2024-02-01"),
    "date and hour": ('"2024-02-01 10"', "2024-02-01 10"),
    "date and minute": ('"2024-02-01 10:30"', "2024-02-01 10:30"),
    "date and second": ('"2024-02-01T10:30:00"', "2024-02-01T10:30:00"),
    "date, second and zone": ('"2024-02-01T10:30:00Z"', "2024-02-01T10:30:00Z"),
    "date, second and offset": ('"2024-02-01 10:30:00+0100"', "2024-02-01 10:30:00+0100"),
    "date and fraction": ('"2024-02-01 10:30:00.123456789"', "2024-02-01 10:30:00.123456789"),
    "time": ('"10:30:00"', "10:30:00"),
    "text like a fraction": ('"1.0"', "1.0"),
    "text like a large integer": ('"12345678901234567890"', "12345678901234567890"),
    "text with leading zeros": ('"007"', "007"),
    "text like a boolean": ('"True"', "True"),
    "text like an object": ('"{}"', "{}"),
    "integer": ("12", "12"),
    "boolean": ("true", "true"),
    "fraction": ("1.0", None),
    "exponent": ("1e5", None),
    "large integer": ("12345678901234567890", None),
    "null": ("null", None),
}
POSITIONS = ("every row", "first row", "last row", "later chunk", "later file", "earlier file")
# One value of each kind, for the other positions.
KINDS = ("date", "date, second and zone", "time", "text with leading zeros", "integer", "boolean", "fraction", "null")


def files_of(folder: Path, position: str, value: str, *, form: str) -> dict[str, Any]:
    """Write three texts with `value` at a position; return the options that open them."""
    columns = {"every row": [value] * 3, "first row": [value, "a", "a"], "earlier file": [value, "a", "a"]}
    texts = columns.get(position, ["a", "a", value])
    split = {"later file": 2, "earlier file": 1}.get(position, 3)
    for number, part in enumerate(filter(None, (texts[:split], texts[split:]))):
        if form == "csv":
            cells = [cell if cell[0] != '"' else '"{}"'.format(json.loads(cell).replace('"', '""')) for cell in part]
            content = "".join(f"{line}\n" for line in ("text,n", *(f"{cell},1" for cell in cells)))
        else:
            rows = [f'{{"text": {json.dumps(cell) if cell == "a" else cell}, "n": 1}}' for cell in part]
            content = "".join(f"{row}\n" for row in rows) if form == "jsonl" else f"[{', '.join(rows)}]"
        (folder / f"{number}.{form}").write_text(content)
    chunks = {"jsonl": ("chunksize=24",), "csv": ("chunksize=2",)}
    return {"source_options": chunks.get(form, ()) if position == "later chunk" else ()}


def texts_of(folder: Path, **options: Any) -> Sequence[str | None]:
    config = SourceConfig(dataset=str(folder), **options)
    try:
        source = building.opened(config)
        plan_columns(config, source, inputs=inputs_of(LayoutConfig(), config))
    except PrepError:
        return REFUSED
    split = source.splits["train"]
    return [text for _, batch in split.read(split.ranges, ["text"]) for text in batch["text"].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_text_is_the_characters_of_the_file_or_refused(tmp_path: Path, form: str, position: str) -> None:
    for name in VALUES if position == "every row" else KINDS:
        value, characters = VALUES[name]
        (folder := tmp_path / name).mkdir()
        texts = texts_of(folder, **files_of(folder, position, value, form=form))
        is_text = form == "csv" or value[0] == '"'
        written = None if value == "null" else json.loads(value) if value[0] == '"' else value
        expected = [written] * 3 if position == "every row" else ["a", "a", written]
        expected = expected[::-1] if position in ("first row", "earlier file") else expected
        # JSON columns with several types in the first chunk, or without texts there, hold no text.
        is_apart = position == "later file" or (position == "later chunk" and form == "jsonl")
        is_kept = is_text or (value == "null" and position not in ("every row", "earlier file"))
        assert texts == (expected if is_kept or (is_apart and characters) else REFUSED), name


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        *(("7", '"12"', 12), ("7", "8.0", 8), ("0.5", "9", 9.0), ("0.5", "true", None)),
        *(("7", later, None) for later in ('"007"', '"+7"', "true", "9223372036854775808")),
        *(("true", later, None) for later in ("1", '"true"')),
    ],
)
def test_a_number_is_the_number_of_the_file_or_refused(tmp_path: Path, first: str, later: str, expected: Any) -> None:
    for name, value in (("a", first), ("b", later)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": {value}}}\n')
    try:
        assert rows_in(tmp_path, "text")[-1] == {"text": expected}
    except PrepError:
        assert expected is None


@pytest.mark.parametrize(
    "value", [["2024-02-01"], {"a": "2024-02-01"}, [{"role": "user", "content": "2024-02-01T10:30:00Z"}], [["2024-02"]]]
)
def test_nested_texts_are_the_characters_of_the_file(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": value}) + "\n")
    assert texts_of(tmp_path, text_columns=("text",)) in (REFUSED, [value])
    assert rows_in(tmp_path, "text") == [{"text": value}]


@pytest.mark.parametrize("form", ['{{"rows": [{}]}}', '{{"date": {{"0": "2024-02-01"}}, "n": {{"0": 1e-12}}}}', "[{}]"])
def test_other_forms_of_json_keep_dates_and_small_numbers(tmp_path: Path, form: str) -> None:
    (tmp_path / "a.json").write_text(form.format('{"date": "2024-02-01", "n": 1e-12}'))
    options = ("field=rows",) if "rows" in form else ()
    (row,) = rows_in(tmp_path, "date", "n", source_options=options)
    assert json.loads(json.dumps(row)) in (
        {"date": "2024-02-01", "n": 1e-12},
        {"date": {"0": "2024-02-01"}, "n": {"0": 1e-12}},
    )


CARDS = {
    "separator": "configs:\n- {config_name: default, data_files: '*.csv', sep: ';'}\n",
    "names": "configs:\n- {config_name: default, data_files: '*.csv', names: [other, text], header: 0}\n",
    "types": "dataset_info:\n  features:\n  - {name: text, dtype: string}\n  - {name: other, dtype: string}\n",
    "classes": "dataset_info:\n  features:\n  - {name: text, dtype: string}\n"
    "  - {name: other, dtype: {class_label: {names: [bad, good]}}}\n",
    "none of these": "license: mit\n",
}


def test_a_card_is_in_the_identity_if_it_decides_how_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,other\na,good\n")
    config = SourceConfig(dataset=str(tmp_path))
    plain = resolve(config).identity
    identities = {}
    for name, card in CARDS.items():
        (tmp_path / "README.md").write_text(f"---\n{card}---\n")
        identities[name] = json.dumps(resolve(config).identity, sort_keys=True)
    assert identities.pop("none of these") == json.dumps(plain, sort_keys=True)
    assert len({*identities.values()}) == len(CARDS) - 1


def test_a_card_names_columns_and_types_of_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,other\n007,good\n1.50,bad\n")
    (tmp_path / "README.md").write_text(f"---\n{CARDS['classes']}---\n")
    assert texts_of(tmp_path, label_column="other") == ["007", "1.50"]


@pytest.mark.parametrize("time", ["2024-02-01", "2024-02-01 10:30:00", "2024-02-01T10:30:00Z"])
def test_times_that_a_card_names_are_times(tmp_path: Path, time: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": time, "at": time}) + "\n")
    features = "- {name: text, dtype: string}\n  - {name: at, dtype: 'timestamp[s]'}\n"
    (tmp_path / "README.md").write_text(f"---\ndataset_info:\n  features:\n  {features}---\n")
    expected = datetime.datetime.fromisoformat(time.removesuffix("Z"))
    assert rows_in(tmp_path, "text", "at") == [{"text": time, "at": expected}]


@pytest.mark.parametrize(
    ("chunksize", "entry"), [(None, None), (10, 10), (100, "whole files"), (4 * 40, None), (10**9, "whole files")]
)
def test_the_size_of_chunks_is_in_the_identity(tmp_path: Path, chunksize: int | None, entry: Any) -> None:
    """If one chunk has `{"n": 1}` and `{"n": 1.5}`, the first is read as `{"n": 1.0}`."""
    (tmp_path / "a.jsonl").write_text('{"text": {"n": 1}}\n{"text": {"n": 1.5}}\n')
    options = (f"chunksize={chunksize}",) if chunksize else ()
    identity = resolve(SourceConfig(dataset=str(tmp_path), source_options=options)).identity
    assert identity.get("reader", {}).get("chunksize") == entry
