"""An export as a job: made, kept, refused and verified files; the same bytes from any number of workers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from pipelines.prepare.export import exporting
from pipelines.prepare.export.export_settings import ExportFormat
from pipelines.prepare.export.exporting import WRITERS
from pipelines.prepare.process.progress import Progress
from tests import building
from tests.building import Outcome, built, reviews
from tests.support import frames, seams, servers
from tests.support.servers import Cluster
from tfrecord_io import examples, records
from tfrecord_io.errors import OutputError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with servers.cluster(tmp_path_factory.mktemp("cluster") / "servers") as started:
        yield started


def export(output: Path, *arguments: object, to: str = "parquet", root: Path | None = None) -> Outcome:
    return building.command("export", root or reviews(), "--to", to, "--output", output, *arguments)


def source_of(to: str) -> Path:
    if to != "megatron-bridge":
        return reviews()
    chats = {"layout": "chat", "pack_rows": True, "max_length": 128, "tokenizer": building.tokenizer("chats")}
    return built(building.REPOSITORY / "examples" / "chats", shard_size="4kB", **chats)


def options_of(to: str) -> list[str]:
    return ["--drop", "label"] if to in ("megatron", "olmo") else []


@pytest.mark.parametrize("to", WRITERS)
def test_workers_change_no_byte_and_leave_nothing_behind(tmp_path: Path, to: str) -> None:
    for workers in (1, 2):
        outcome = export(tmp_path / str(workers), *options_of(to), "--workers", workers, to=to, root=source_of(to))
        assert outcome.status == 0, outcome.err
    files = building.files(tmp_path / "1")
    assert files == building.files(tmp_path / "2")
    assert not [name for name in files if name.startswith(".")]
    verified = building.command("verify", tmp_path / "1")
    assert (verified.status, verified.out.partition(":")[0]) == (0, "all files match export.json")


@pytest.mark.slow
def test_workers_elsewhere_change_no_byte(tmp_path: Path, cluster: Cluster) -> None:
    outcome = export(tmp_path / "there", "--", *cluster.beam_args)
    assert outcome.status == 0, outcome.err
    assert export(tmp_path / "here").status == 0
    assert building.files(tmp_path / "there") == building.files(tmp_path / "here")


def test_what_is_there_is_kept_and_what_is_missing_is_made_again(tmp_path: Path) -> None:
    export(tmp_path / "out")
    before = building.files(tmp_path / "out")
    again = json.loads(export(tmp_path / "out", "--json").out)
    assert (again["shards_made"], again["shards_kept"]) == (0, 4)
    next((tmp_path / "out").glob("*-train-*.parquet")).unlink()
    again = json.loads(export(tmp_path / "out", "--json").out)
    assert (again["shards_made"], again["shards_kept"]) == (1, 3)
    assert building.files(tmp_path / "out") == before


def test_an_export_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], exporting.export_shard

    def stop_at_third(task: exporting.ExportTask, progress: Progress) -> dict[str, int]:
        made.append(task.shard.name)
        if len(made) >= 3:
            raise OutputError("stopped", remedy="go on")
        return real(task, progress)

    seams.put(monkeypatch, export_shard=stop_at_third)
    assert export(tmp_path / "out", "--workers", 1).error[0] == "stopped"
    assert not (tmp_path / "out" / "export.json").exists()
    monkeypatch.undo()
    again = json.loads(export(tmp_path / "out", "--json").out)
    assert (again["shards_made"], again["shards_kept"]) == (2, 2)
    export(tmp_path / "whole")
    assert building.files(tmp_path / "out") == building.files(tmp_path / "whole")


@pytest.mark.parametrize("to", ["parquet", "arrayrecord"])
def test_a_flipped_byte_in_a_shard_is_refused_by_name(tmp_path: Path, to: str) -> None:
    root = Path(shutil.copytree(source_of(to), tmp_path / "data"))
    shard = sorted(root.glob("*-train-*.tfrecord"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    outcome = export(tmp_path / "out", *options_of(to), to=to, root=root)
    assert str(shard) in outcome.error[0]
    assert not list((tmp_path / "out").glob(f"*{shard.stem}*"))
    assert not (tmp_path / "out" / "export.json").exists()


def test_records_that_changed_places_are_refused(tmp_path: Path) -> None:
    root = Path(shutil.copytree(reviews(), tmp_path / "data"))
    shard, schema = sorted(root.glob("*-train-*.tfrecord"))[0], building.read_manifest(root).schema
    columns = examples.decode(frames.messages_of(shard.read_bytes()), schema, place="")
    turned = {name: np.ascontiguousarray(values[::-1]) for name, values in columns.items()}
    shard.write_bytes(records.encode_framed(turned, schema).data.tobytes())
    assert f"{shard}: sha256 " in export(tmp_path / "out", to="arrayrecord", root=root).error[0]


def test_a_flipped_byte_in_an_export_is_found(tmp_path: Path) -> None:
    export(tmp_path / "out")
    damaged = sorted((tmp_path / "out").glob("*.parquet"))[0]
    content = bytearray(damaged.read_bytes())
    content[40] ^= 1
    damaged.write_bytes(content)
    outcome = building.command("verify", tmp_path / "out", "--json")
    assert outcome.error[0] == f"{tmp_path / 'out'}: {damaged.name} is damaged or missing"
    assert [file["file"] for file in json.loads(outcome.out)] == [damaged.name]


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    export(tmp_path / "out")
    record = tmp_path / "out" / "export.json"
    record.write_text(record.read_text().replace('"num_tokens": ', '"num_tokens": 1'))
    assert "not written by `prep-tfrecords export`" in building.command("verify", tmp_path / "out").error[0]


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "holds notes.txt" in export(tmp_path).error[0]
    assert building.files(tmp_path) == {"notes.txt": b"mine"}
    export(tmp_path / "out")
    assert "holds another export" in export(tmp_path / "out", "--drop", "label").error[0]
    assert "holds" in export(reviews()).error[0]


@pytest.mark.parametrize(
    ("to", "arguments", "cause"),
    [
        ("megatron", [], "hold token ids alone, so label would be lost"),
        ("megatron", ["--drop", "label", "--rename", "a=b"], "--rename was given with --to megatron"),
        ("megatron-bridge", [], "layout pad: its rows are not packed"),
        ("olmo", ["--drop", "attention_mask"], "--drop attention_mask with --to olmo: this format needs the column"),
        ("olmo", [], "hold token ids and a mask of the learned ones, so label would be lost"),
        ("olmo", ["--push", "me/reviews"], "--push was given with --to olmo"),
        ("parquet", ["--push", "reviews"], "--push reviews: expected ORG/NAME"),
        ("parquet", ["--push", "me/a..b"], "--push me/a..b: "),
        ("parquet", ["--push", "me/a", "--output", "memory://out"], "only a local folder can be uploaded"),
        ("parquet", ["--drop", "nothing"], "there is no such column, expected one of input_ids, label"),
        ("parquet", ["--rename", "label=input_ids"], "two columns would be named 'input_ids'"),
        ("parquet", ["--rename", "label"], "--rename label: expected OLD=NEW"),
        ("tfrecord", ["--rename", "label=not a name"], "feature 'not a name': invalid name"),
        ("tfrecord", ["--add", "labels"], "--add was given with --to tfrecord"),
        ("parquet", ["--documents"], "each row is one document, which is exported without padding anyway"),
        ("parquet", ["--split", "test"], "no split 'test'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    tmp_path: Path, to: str, arguments: list[str], cause: str
) -> None:
    assert cause in export(tmp_path / "out", *arguments, to=to).error[0]
    assert not (tmp_path / "out").exists()


def test_one_split_alone_is_exported(tmp_path: Path) -> None:
    export(tmp_path / "out", "--split", "validation")
    names = [name for name in building.files(tmp_path / "out") if name.endswith(".parquet")]
    assert names
    assert all("-validation-" in name for name in names)


def test_every_format_of_the_option_has_its_writer() -> None:
    assert tuple(WRITERS) == get_args(ExportFormat)
