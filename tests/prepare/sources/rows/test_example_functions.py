"""Builds with `--map` and `--filter`: records, ledger, errors, and what looks at the dataset later."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from examples.functions import clean
from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.consent import Consent
from pipelines.prepare.audit.trace import Tracer
from tests import building
from tests.building import Outcome, read_manifest, read_rows

ROWS = [
    {"text": f"word {index}<br />and {'more ' * (index % 9)}of it", "n": index, "label": index % 3}
    for index in range(400)
]
MODULE = """
import pyarrow as pa
import pyarrow.compute as pc


def spaced(t):
    return t.set_column(t.column_names.index("text"), "text", pc.replace_substring(t["text"], "<br />", " "))


def tripled(t):
    return t.append_column("thrice", pc.multiply(t["n"], 3))


def some(t):
    return pc.not_equal(pc.bit_wise_and(t["n"], 3), 1)


def without_text(t):
    return t.set_column(
        t.column_names.index("text"), "text", pc.if_else(pc.equal(t["n"], 7), pa.scalar(None, pa.string()), t["text"])
    )

"""
MAPPED = [{**row, "text": str(row["text"]).replace("<br />", " "), "thrice": 3 * int(str(row["n"]))} for row in ROWS]
LEFT = [row for row in MAPPED if int(str(row["n"])) & 3 != 1]
STEPS: dict[str, Any] = {"map": ("clean:spaced", "clean:tripled"), "filter": "clean:some"}
ONE_ERROR: dict[str, Any] = {"filter": "clean:some", "map": "clean:without_text"}
STORED = Consent(run_stored=True)
SHARD_SIZE = "30kB"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current directory of all tests: another one would start other processes."""
    return tmp_path_factory.mktemp("functions")


@pytest.fixture(autouse=True)
def module(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(place)
    (place / "clean.py").write_text(MODULE, encoding="utf-8")
    return place / "clean.py"


def data(folder: Path, rows: Sequence[dict[str, Any]] = ROWS, name: str = "data") -> Path:
    return building.source(folder / name, train=rows)


def build(dataset: Path, output: Path, **changes: Any) -> Outcome:
    options = building.options(output, **{"name": "x", "keep_column": "n", "shard_size": SHARD_SIZE, **changes})
    return building.command("build", dataset, *options)


def done(*arguments: Any, **changes: Any) -> Path:
    outcome = build(*arguments, **changes)
    assert outcome.status == 0, outcome.err
    return Path(arguments[1])


@pytest.fixture(scope="module")
def stepped(place: Path) -> Iterator[Path]:
    """A build with all of STEPS, made once: copy it before changing it."""
    (place / "clean.py").write_text(MODULE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", list(sys.path))
        yield done(data(place), place / "out", **STEPS)


def sorted_records(root: Path) -> dict[str, list[Any]]:
    columns = read_rows(root, "train")
    order = np.argsort(columns["n"], kind="stable")
    return {name: values[order].tolist() for name, values in columns.items()}


@pytest.mark.slow
def test_functions_give_the_records_of_data_that_was_changed_beforehand(tmp_path: Path, stepped: Path) -> None:
    plain = done(data(tmp_path, LEFT, "left"), tmp_path / "b")
    assert sorted_records(stepped) == sorted_records(plain)
    assert len(sorted_records(stepped)["n"]) == 300


def test_every_row_is_used_or_filtered(stepped: Path) -> None:
    ledger = read_manifest(stepped).splits["train"].ledger
    assert (ledger.rows_in, ledger.rows_used, ledger.filtered) == (400, 300, {"filtered": 100})
    assert all(shard.ledger.balanced for shard in read_manifest(stepped).splits["train"].shards)
    assert not (stepped / "rejected").exists()


@pytest.mark.slow
def test_only_errors_of_the_rows_that_are_left_are_named_as_the_source_has_them(tmp_path: Path) -> None:
    outcome = build(data(tmp_path), tmp_path / "out", **ONE_ERROR)
    assert "1 of 300 rows cannot be used (train: text is null in 1)" in outcome.error[0]
    assert "row 8 of train.jsonl (text is null)" in outcome.error[0]
    root = done(data(tmp_path), tmp_path / "out", max_error_rate=1 / 300, **ONE_ERROR)
    (path,) = (root / "rejected").iterdir()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["row"], line["reason"], json.loads(line["content"])) == (7, "text_null", {"text": None, "n": 7})
    ledger = read_manifest(root).splits["train"].ledger
    assert (ledger.rejected, ledger.filtered) == ({"text_null": 1}, {"filtered": 100})


@pytest.mark.slow
def test_every_record_leads_to_its_row_without_the_module(module: Path, stepped: Path) -> None:
    module.unlink()
    tracer = Tracer(reopened_dataset.reopen(str(stepped), read_manifest(stepped), consent=STORED))
    seen = []
    for index, shard in enumerate(read_manifest(stepped).splits["train"].shards):
        for record in range(shard.num_examples):
            (row,) = tracer.trace(split="train", shard=index, record=record).rows
            assert row.texts == {"text": MAPPED[row.row]["text"]}
            seen.append(row.row)
    assert sorted(seen) == [row["n"] for row in LEFT]
    assert seen == read_rows(stepped, "train")["n"].tolist()


def test_an_edit_of_the_module_is_refused_with_what_changed(tmp_path: Path, module: Path, stepped: Path) -> None:
    shutil.copytree(stepped, tmp_path / "out")
    module.write_text(MODULE + "# edited\n", encoding="utf-8")
    outcome = build(data(tmp_path), tmp_path / "out", **STEPS)
    assert "functions[0].module_sha256: was" in outcome.error[0]
    assert "--overwrite" in outcome.error[1]


def test_the_functions_that_the_page_shows() -> None:
    texts = ["Good.<br /><br/>Really <BR>  good, I mean it.", "ok", None, "one two three four five", " a b c  d "]
    cleaned = clean.without_breaks(pa.table({"text": texts, "n": range(5)}))
    assert cleaned.column_names == ["text", "n"]
    assert cleaned["text"].to_pylist() == ["Good. Really good, I mean it.", "ok", None, texts[3], "a b c d"]
    assert clean.has_enough_words(cleaned).to_pylist() == [True, False, None, True, False]
