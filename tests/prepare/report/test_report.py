"""The report of a dataset: its figures are the manifest's, its samples are the records', and its text is escaped."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import building
from tests.building import REVIEWS, built, reviews
from tfrecord_io import manifest

CHATS = building.REPOSITORY / "examples" / "chats"


def page_of(root: object, tmp_path: Path, *options: object) -> str:
    outcome = building.command("report", root, "--output", tmp_path / "report.html", *options)
    assert outcome.status == 0, outcome.err
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def tables_of(page: str) -> dict[str, list[list[str]]]:
    """The rows of every table by its caption."""
    tables: dict[str, list[list[str]]] = {}
    for caption, body in re.findall(r"<caption><span>(.*?)</span></caption>.*?<tbody>(.*?)</tbody>", page, re.S):
        rows = [
            re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
        ]
        tables.setdefault(html.unescape(caption), []).extend([[html.unescape(cell) for cell in row] for row in rows])
    return tables


def test_the_figures_are_the_manifests(tmp_path: Path) -> None:
    facts = building.read_manifest(reviews())
    rows = tables_of(page_of(reviews(), tmp_path))["Splits (exact, from the manifest)"]
    for row, (name, split) in zip(rows, facts.splits.items(), strict=True):
        ledger = split.ledger
        figures = [ledger.rows_in, 0, 0, split.num_examples, split.num_tokens, ledger.tokens_cut, len(split.shards)]
        assert [row[0], *(int(cell.replace(",", "")) for cell in row[1:-1])] == [name, *figures]


def test_the_same_dataset_gives_the_same_bytes_wherever_it_is(tmp_path: Path) -> None:
    shutil.copytree(reviews(), tmp_path / "copy")
    assert page_of(reviews(), tmp_path) == page_of(tmp_path / "copy", tmp_path)


def test_the_page_is_small_and_loads_nothing(tmp_path: Path) -> None:
    page = page_of(reviews(), tmp_path)
    assert len(page) < 2 << 20
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|img|link|iframe|object)\b|(src|href)=\"(?!#)|url\(|@import", page)


def test_text_of_rows_stays_text(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script> \u202e\x1b[2J <img src=x>'
    rows: list[dict[str, Any]] = [
        {"text": evil, "label": "a"},
        {"text": None, "label": evil},
        {"text": evil, "label": evil},
    ]
    root = built(building.source(tmp_path / "data", train=rows), label_column="label", max_error_rate=0.5)
    page = page_of(root, tmp_path)
    assert not re.search(r"<script|<img|\x1b|\u202e", page)
    assert "&lt;script&gt;" in page


def test_half_of_the_rows_is_counted_by_length_and_advice_keeps_options_whole(tmp_path: Path) -> None:
    rows = [{"text": " ".join(["good"] * (length - 2))} for length in [3, 3, 3, 54]]
    page = page_of(built(building.source(tmp_path / "data", train=rows), max_length=512), tmp_path)
    assert "Median: 3 tokens. Longest: 54 tokens." in page
    assert [row[:2] for row in tables_of(page)["Rows by tokens"] if row[1] != "0"] == [["1-4", "3"], ["53-56", "1"]]
    assert '<span class="option">--bucket-lengths</span> auto:4' in page


def test_the_shares_of_labels_are_told(tmp_path: Path) -> None:
    rows = [{"text": f"row {number}", "label": label} for number, label in enumerate("aaab")]
    page = page_of(built(building.source(tmp_path / "data", train=rows), label_column="label"), tmp_path)
    assert "Most frequent label: 75.0 %. Rarest label: 25.0 %." in page


def test_rejected_rows_have_their_reason_and_an_example(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "fine"}, {"text": None}, {"text": "good"}]
    tables = tables_of(page_of(built(building.source(tmp_path / "data", train=rows), max_error_rate=0.5), tmp_path))
    assert ["rejected: text is null", "1", "33.3 %"] in tables["Rows read, from the manifest"]
    assert tables["Examples of rejected rows"] == [["text is null", "1", '{"text": null}']]


def test_what_is_learned_of_a_row_is_told(tmp_path: Path) -> None:
    root = built(CHATS, layout="chat", tokenizer=building.tokenizer("chats"), max_length=256)
    rows = tables_of(page_of(root, tmp_path))["The first rows"]
    assert all(re.search(r'^learned \["\S', features) for _, _, features in rows)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "gzip", "label_column": "label"},
        {"layout": "concat", "special_tokens": "none"},
        {"layout": "concat", "segments": True},
        {"bucket_lengths": "16,32,64", "max_length": None, "hold_out": "test=train:10%", "split": "train"},
    ],
)
def test_other_datasets_are_shown_too(tmp_path: Path, options: dict[str, object]) -> None:
    root = built(REVIEWS, **options)
    tables = tables_of(page_of(root, tmp_path))
    assert [row[0] for row in tables["Splits (exact, from the manifest)"]] == list(building.read_manifest(root).splits)


def test_options_and_place_are_told_without_secrets(tmp_path: Path) -> None:
    root = Path(shutil.copytree(reviews(), tmp_path / "out"))
    (source,) = root.glob(".prep/*/source.json")
    fields = {**json.loads(source.read_text()), "dataset": "https://me:hush@host/rows.jsonl?sig=hush"}
    source.write_text(json.dumps(fields))
    tables = tables_of(page_of(root, tmp_path))
    assert "hush" not in str(tables)
    assert ["location of the source", "https://...@host/rows.jsonl?..."] in tables["From the manifest"]
    assert ["layout", "pad"] in tables["Options of the build that affect bytes"]


def test_without_the_work_folder_there_is_a_report_all_the_same(tmp_path: Path) -> None:
    root = Path(shutil.copytree(reviews(), tmp_path / "out"))
    shutil.rmtree(root / ".prep")
    assert "location of the source" not in page_of(root, tmp_path)


def test_what_is_no_finished_dataset_is_named_in_two_lines(tmp_path: Path) -> None:
    output = ("--output", tmp_path / "report.html")
    assert building.command("report", tmp_path / "none", *output).error[0] == f"{tmp_path / 'none'}: no such folder"
    assert "there is no finished dataset here" in building.command("report", tmp_path, *output).error[0]
    root = Path(shutil.copytree(reviews(), tmp_path / "out"))
    path = root / manifest.FILE_NAME
    whole = path.read_text()
    path.write_text(whole.replace('"format_version": "1.', '"format_version": "2.'))
    assert "this library reads version 1.x" in building.command("report", root, *output).error[0]
    path.write_text(whole)
    next(root.glob("*-train-00001-*")).unlink()
    assert "is missing" in building.command("report", root, *output).error[0]
    assert not output[1].exists()


def test_what_cannot_be_written_is_named_in_two_lines(tmp_path: Path) -> None:
    cause, remedy = building.command("report", reviews(), "--output", tmp_path).error
    assert cause == f"--output {tmp_path}: a folder, expected a file"
    assert remedy == f"give --output {tmp_path}/report.html"
    assert "cannot be written" in building.command("report", reviews(), "--output", "/proc/none/report.html").error[0]
