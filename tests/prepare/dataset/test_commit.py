"""The last step: its files, and its refusals for rejected rows, missing shards, and sums that do not match."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from pipelines.prepare.dataset import commit, receipts, tfds
from pipelines.prepare.launch.open_job import OpenJob
from pipelines.prepare.sources.rows.unused_rows import RejectedRow, UnusedRows
from tests import building
from tests.building import REVIEWS, read_manifest, read_rows
from tests.support import seams
from tests.support.commits import committed, request
from tfrecord_io import manifest
from tfrecord_io.errors import LedgerError, OutputError, RowsRejectedError

NULLS = (3, 7, 11, 12)


@pytest.fixture
def with_nulls(tmp_path: Path) -> Path:
    rows = [{"text": None if row in NULLS else f"this is row {row}", "row": row} for row in range(20)]
    return building.source(tmp_path / "data", train=rows)


def resolved(output: Path) -> OpenJob:
    return building.resolved(request(str(output)))


def test_rows_without_text_stop_the_build_with_number_and_first_three(with_nulls: Path, tmp_path: Path) -> None:
    cause, remedy = building.command("build", with_nulls, *building.options(tmp_path / "out")).error
    assert cause == (
        "4 of 20 rows cannot be used (train: text is null in 4), such as row 4 of train.jsonl (text is null), "
        "row 8 of train.jsonl (text is null), row 12 of train.jsonl (text is null); --max-error-rate 0 allows 0"
    )
    assert "--max-error-rate" in remedy


@pytest.mark.parametrize("shard_size", ["100MB", "1kB"])
def test_rejected_rows_are_counted_and_written_down(with_nulls: Path, tmp_path: Path, shard_size: str) -> None:
    output = tmp_path / "out"
    options = building.options(output, max_error_rate=0.5, keep_column="row", shard_size=shard_size)
    outcome = building.command("build", with_nulls, *options)
    assert outcome.status == 0, outcome.err
    shards = [shard for shard in read_manifest(output).splits["train"].shards if shard.ledger.rejected]
    named = ", ".join(f"{shard.name} {shard.ledger.rows_rejected}" for shard in shards)
    assert f"rejected in train: text is null in 4 (rows in rejected/; {named})" in " ".join(outcome.err.split())
    assert sum(shard.ledger.rows_rejected for shard in shards) == 4
    ledger = read_manifest(output).splits["train"].ledger
    assert (ledger.rows_in, ledger.rows_used, ledger.rejected) == (20, 16, {"text_null": 4})
    assert sorted(read_rows(output, "train")["row"]) == [row for row in range(20) if row not in NULLS]
    lines = [
        json.loads(line) for path in sorted((output / "rejected").iterdir()) for line in path.read_text().splitlines()
    ]
    assert sorted(line["row"] for line in lines) == list(NULLS)
    for line in lines:
        assert line["reason"] == "text_null"
        assert json.loads(line["content"]) == {"text": None, "row": line["row"]}
    assert building.command("verify", output).status == 0


@pytest.mark.slow
def test_a_row_that_is_too_long_not_to_be_cut_is_rejected_while_tokenizing(tmp_path: Path) -> None:
    rows = [{"text": "word " * (50 if row % 4 == 1 else 5)} for row in range(20)]
    data = building.source(tmp_path / "data", train=rows)
    options = building.options(tmp_path / "out", truncation="do_not_truncate", no_shuffle=True)
    cause, _ = building.command("build", data, *options).error
    assert cause.startswith("at least 4 of 20 rows cannot be used (train: too many tokens in 4)"), "16 are sampled"
    assert [int(row) for row in re.findall(r"row (\d+) of train.jsonl", cause)] == [6, 10, 14]

    outcome = building.command("build", data, *options, "--max-error-rate", 0.25, "--json")
    assert outcome.status == 0, outcome.err
    split = read_manifest(tmp_path / "out").splits["train"]
    assert split.ledger.rejected == {"too_long": 5}
    assert split.num_examples == 15
    (path,) = (tmp_path / "out" / "rejected").iterdir()
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [1, 5, 9, 13, 17]


def test_what_only_a_shard_can_find_stops_the_job_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, sample_rows=16)
    rows = [{"text": "word " * (50 if row == 199 else 5)} for row in range(200)]
    data = building.source(tmp_path / "data", train=rows)
    options = building.options(tmp_path / "out", truncation="do_not_truncate", no_shuffle=True, shard_size="2kB")
    cause, remedy = building.command("build", data, *options).error
    assert cause == "row 200 of train.jsonl: too many tokens; --max-error-rate 0 allows no row that cannot be used"
    assert "--max-error-rate" in remedy
    assert not (tmp_path / "out" / "manifest.json").exists()

    outcome = building.command("build", data, *options, "--max-error-rate", 0.25, "--json")
    assert outcome.status == 0, outcome.err
    assert 0 < json.loads(outcome.out)["shards_made"] < len(read_manifest(tmp_path / "out").splits["train"].shards)


def test_committing_again_writes_the_same_manifest(finished: Path) -> None:
    before = building.files(finished)
    assert committed(resolved(finished)) == read_manifest(finished)
    assert building.files(finished) == before


@pytest.mark.parametrize("missing", ["*-train-*.tfrecord", ".prep/*/train/receipt-*", ".prep/*/validation/plan.*"])
def test_nothing_is_committed_while_something_is_missing(finished: Path, missing: str) -> None:
    (finished / "manifest.json").unlink()
    sorted(finished.glob(missing))[0].unlink()
    with pytest.raises(OutputError, match=r"split '(train|validation)' lacks (1 shard|its plan)") as caught:
        committed(resolved(finished))
    assert caught.value.remedy == "run the same command again; only the missing files are made"
    assert not (finished / "manifest.json").exists()


def test_a_job_that_was_cleared_away_is_not_committed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store, no lock prevents a restart during the last step."""
    (finished / "manifest.json").unlink()
    opened = resolved(finished)

    def clear_first(made: manifest.Manifest) -> dict[str, bytes]:
        Path(opened.job.work_path("job.json")).unlink()
        return files(made)

    files = tfds.files
    seams.put(monkeypatch, tfds_files=clear_first)
    with pytest.raises(OutputError, match="the files of this job are gone: another job has started over"):
        committed(opened)
    assert not (finished / "manifest.json").exists()


def test_the_splits_of_another_dataset_are_not_committed(finished: Path) -> None:
    manifest_path = finished / "manifest.json"
    opened = resolved(finished)
    other = dataclasses.replace(read_manifest(finished), fingerprint="0" * 32)
    manifest_path.write_bytes(manifest.dump(other))
    with pytest.raises(OutputError, match=f"another job has written this file.* got fingerprint {'0' * 32}, expected"):
        committed(opened)
    assert manifest_path.read_bytes() == manifest.dump(other)


def test_rows_that_do_not_add_up_are_never_committed(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = receipts.find
    (finished / "manifest.json").unlink()
    (receipt,) = finished.glob(".prep/*/validation/receipt-*.json")
    parsed = receipts.parse(receipt.read_bytes())
    (shard,) = parsed.shards
    ledger = dataclasses.replace(shard.ledger, rows_in=79, rows_used=79)
    lost = dataclasses.replace(parsed, shards=(dataclasses.replace(shard, ledger=ledger),))
    monkeypatch.setattr(
        receipts, "find", lambda job, tasks: [lost] if tasks[0].split == "validation" else find(job, tasks)
    )
    with pytest.raises(LedgerError, match="of 80 planned rows, 79 were read, 79 used, 0 rejected"):
        committed(resolved(finished))
    assert not (finished / "manifest.json").exists()


def test_the_manifest_says_what_it_was_made_of_without_a_path(finished: Path) -> None:
    facts = read_manifest(finished)
    assert facts.source["splits"] == {"train": [[0, 320]], "validation": [[0, 80]]}
    assert facts.options["seed"] == 0
    assert facts.layout == {"name": "pad", "max_length": 32, "one_record": True}
    assert set(facts.versions) == {"prep-tfrecords", "datasets", "tokenizers", "transformers"}
    text = (finished / "manifest.json").read_text()
    for path in (REVIEWS, building.tokenizer().parent, finished):
        assert str(path) not in text


def of_split(rejected: dict[str, int], *first: RejectedRow) -> UnusedRows:
    return UnusedRows(rejected=rejected, filtered={}, first=first)


def test_the_rate_is_of_all_splits_together() -> None:
    unused = {"a": of_split({"text_null": 2}, RejectedRow(row=4, reason="text_null")), "b": of_split({})}
    commit.check_error_rate(unused, rows={"a": 10, "b": 10}, limit=0.1)
    words = r"2 of 20 rows .*a: text is null in 2.*a\[4\] \(text is null\).* 0.09 allows 1"
    with pytest.raises(RowsRejectedError, match=words):
        commit.check_error_rate(unused, rows={"a": 10, "b": 10}, limit=0.09)


def test_filtered_rows_do_not_count_towards_the_rate() -> None:
    filtered = {"filtered": 40, "held_out": 30, "not_held_out": 20}
    unused = {"train": UnusedRows(rejected={"text_null": 1}, filtered=filtered, first=())}
    commit.check_error_rate(unused, rows={"train": 100}, limit=0.1)
    with pytest.raises(RowsRejectedError, match=r"1 of 10 rows cannot be used \(train: text is null in 1\)"):
        commit.check_error_rate(unused, rows={"train": 100}, limit=0.09)
