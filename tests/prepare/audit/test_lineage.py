"""Every record leads back to the rows that are in it: checked against the tokens that the shards really hold."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.audit.trace import Traced, Tracer
from tests import building
from tests.building import REVIEWS, built, read_manifest, read_shard, reviews
from tfrecord_io import random_access
from tfrecord_io.random_access import GlobalBatches

ROWS = [json.loads(line) for line in (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()]


def tracer_of(root: Path) -> Tracer:
    return Tracer(reopened_dataset.reopen(str(root), read_manifest(root)))


def every_record(root: Path) -> list[tuple[Traced, np.ndarray]]:
    tracer = tracer_of(root)
    return [
        (tracer.trace(split="train", shard=index, record=record), ids)
        for index, shard in enumerate(read_manifest(root).splits["train"].shards)
        for record, ids in enumerate(read_shard(root, shard)["input_ids"])
    ]


@pytest.mark.slow
def test_a_record_of_slices_is_the_row_that_it_is_traced_to() -> None:
    root = reviews(split="train[10:200]+train[50:60]")
    tokenizer = load_tokenizer(str(root))
    seen = []
    for traced, ids in every_record(root):
        (row,) = traced.rows
        assert row.texts == {"text": ROWS[row.row]["text"]}
        expected = tokenizer(row.texts["text"], truncation=True, max_length=32, padding="max_length")["input_ids"]
        assert ids.tolist() == expected
        assert (row.file, row.file_row, row.tokens) == (str(REVIEWS / "train.jsonl"), row.row, None)
        seen.append(row.row)
    wanted = [row for start, stop in read_manifest(root).source["splits"]["train"] for row in range(start, stop)]
    assert sorted(seen) == sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "txt", "parquet", "jsonl.gz"])
def test_a_row_is_found_in_the_file_that_it_came_from(tmp_path: Path, kind: str) -> None:
    """Several files of different lengths, with blank lines and quoted line breaks if the format has them."""
    data = tmp_path / "data"
    data.mkdir()
    texts = {f"part-{index}.{kind}": [f"file {index} row {row}" for row in range(5 + 3 * index)] for index in range(3)}
    for name, column in texts.items():
        path, text = data / name, "".join(f"{value}\n" for value in column)
        if kind == "parquet":
            pq.write_table(pa.table({"text": column}), path)
        elif kind == "jsonl.gz":
            lines = "".join(json.dumps({"text": value}) + "\n" for value in column)
            path.write_bytes(gzip.compress(lines.encode()))
        else:
            # A line break inside a cell of a table: rows are no lines.
            cells = "".join(f'"{value[:4]}\n{value[5:]}"\n' for value in column)
            path.write_text(text if kind == "txt" else f"text\n{cells}")
    root = built(data, text_column="text", max_length=16)
    for traced, _ in every_record(root):
        (row,) = traced.rows
        assert row.file is not None
        assert row.texts["text"].replace("\n", " ") == texts[Path(row.file).name][row.file_row]


def test_a_source_that_was_moved_is_named_by_an_option(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": f"row {row}"} for row in range(20)])
    assert building.command("build", data, *building.options(tmp_path / "out")).status == 0
    data.rename(tmp_path / "moved")
    arguments = ("--split", "train", "--shard", 0, "--record", 3)
    cause, remedy = building.command("trace", tmp_path / "out", *arguments).error
    assert cause == f"{data}: no such file or folder"
    assert remedy.endswith("; give its new path with --source if it has moved")
    outcome = building.command("trace", tmp_path / "out", *arguments, "--source", tmp_path / "moved", "--json")
    assert outcome.status == 0, outcome.err
    (row,) = json.loads(outcome.out)["rows"]
    assert row["file"] == str(tmp_path / "moved" / "train.jsonl")
    assert f"row {row['file_row'] + 1} of {tmp_path}/moved/train.jsonl" in outcome.err
    assert f"text: row {row['row']}" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        (("none", 0, 0), "no split 'none'", "choose among train, validation"),
        (("train", 99, 0), "split 'train' has no shard 99", "choose 0 to "),
        (("train", 0, 9999), "has no record 9999", "choose 0 to "),
        (("validation", 1, 0), "has no shard 1", "choose 0, the only number"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(arguments: tuple[str, int, int], cause: str, remedy: str) -> None:
    split, shard, record = arguments
    error = building.command("trace", reviews(), "--split", split, "--shard", shard, "--record", record).error
    assert cause in error[0]
    assert remedy in error[1]


def test_a_row_of_a_split_with_another_name_is_said_to_be_of_the_sources(tmp_path: Path) -> None:
    data = building.source(tmp_path / "data", train=[{"text": f"row {row}"} for row in range(20)])
    options = building.options(tmp_path / "out", split=("first=train[:5]", "train"))
    assert building.command("build", data, *options).status == 0
    for split in ("first", "train"):
        outcome = building.command("trace", tmp_path / "out", "--split", split, "--shard", 0, "--record", 3, "--json")
        traced = json.loads(outcome.out)
        assert f"train[{traced['rows'][0]['row']}] = row" in outcome.err
        assert traced["origin"] == ("train" if split == "first" else None)


PLANTED = "the planted row that makes the loss jump"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"text": PLANTED if row == 123 else f"an ordinary row, number {row}"} for row in range(300)]
    data = building.source(tmp_path_factory.mktemp("planted") / "data", train=rows)
    return building.built(data, shard_size="5kB")


def batches_of(root: Path, *, size: int, seed: int) -> GlobalBatches:
    return random_access.global_batches(random_access.open(root)["train"], global_batch_size=size, seed=seed)


def traced_steps(root: Path, batches: GlobalBatches, *steps: int) -> list[Traced]:
    tracer = tracer_of(root)
    origins = (origin for step in steps for origin in batches.origins(step))
    return [tracer.trace(split="train", shard=shard, record=record) for _, shard, record in origins]


def test_a_planted_row_is_found_by_the_step_that_trains_on_it(planted: Path) -> None:
    batches = batches_of(planted, size=16, seed=3)
    ids = load_tokenizer(str(planted))(PLANTED, padding="max_length", max_length=32)["input_ids"]
    steps = ((step, (batches[step]["input_ids"] == ids).all(axis=1)) for step in range(19))
    step, place = next((step, int(hits.argmax())) for step, hits in steps if hits.any())
    (row,) = traced_steps(planted, batches, step)[place].rows
    assert (row.row, row.texts) == (123, {"text": PLANTED})


@pytest.mark.slow
def test_every_row_of_an_epoch_is_found(planted: Path) -> None:
    assert len(read_manifest(planted).splits["train"].shards) > 2
    traces = traced_steps(planted, batches_of(planted, size=30, seed=1), *range(10))
    assert sorted(trace.rows[0].row for trace in traces) == list(range(300))
