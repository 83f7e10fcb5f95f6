"""A build into a bucket: the files of a local build, byte for byte, however often it is interrupted or mended."""

import gzip
import json
from pathlib import Path
from unittest import mock

import pytest

from pipelines.prepare.export import exporting
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.runners import here as runners_here
from tests import building
from tests.building import Outcome
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Faults, through
from tests.prepare.append import appended
from tests.prepare.append.appended import stop_at_second_shard
from tests.support import seams
from tfrecord_io.errors import OutputError


def build(bucket: str, dataset: object = building.REVIEWS, **changes: object) -> Outcome:
    return building.command("build", dataset, *building.options(f"gs://{bucket}/out", **changes))


def done(outcome: Outcome) -> Outcome:
    assert outcome.status == 0, outcome.err
    return outcome


def made_and_kept(outcome: Outcome) -> tuple[int, int]:
    told = json.loads(done(outcome).out)
    return told["shards_made"], told["shards_kept"]


def shards(gcs: Gcs, bucket: str) -> list[str]:
    return [name for name in gcs.names(bucket, "out/") if name.endswith(".tfrecord")]


def copy_reviews(gcs: Gcs, bucket: str) -> None:
    for name, content in building.files(building.reviews()).items():
        gcs.write(bucket, f"out/{name}", content)


@pytest.mark.slow
def test_processes_ingest_into_a_bucket_the_same_bytes(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, ingest_least_bytes=1)
    with mock.patch.object(runners_here, "run", wraps=runners_here.run) as run:
        done(build(bucket, layout="concat", max_length=64, workers=2))
    assert 2 in [call.kwargs["processes"] for call in run.call_args_list]
    local = building.built(building.REVIEWS, layout="concat", max_length=64)
    assert gcs.objects(bucket, "out/") == building.files(local)


@pytest.mark.slow
def test_a_dataset_in_a_bucket_is_verified_shown_and_traced_like_a_local_one(gcs: Gcs, bucket: str) -> None:
    copy_reviews(gcs, bucket)
    local = building.reviews()
    trace = ("--split", "train", "--shard", 1, "--record", 2)
    named = (*trace, "--source", building.REVIEWS)
    for command, *words in (["verify"], ["inspect"], ["trace", *trace], ["trace", *named]):
        there, here = (done(building.command(command, at, *words, "--json")) for at in (f"gs://{bucket}/out", local))
        assert there.out == here.out


@pytest.mark.slow
def test_a_build_that_was_stopped_goes_on_where_it_stopped(gcs: Gcs, bucket: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert "stopped" in build(bucket, label_column="label").err
    assert "out/manifest.json" not in gcs.names(bucket)
    assert made_and_kept(build(bucket, label_column="label", json=True)) == (3, 1)
    assert gcs.objects(bucket, "out/") == building.files(building.reviews())


@pytest.mark.slow
def test_what_is_damaged_in_a_bucket_is_found_and_made_again(gcs: Gcs, bucket: str) -> None:
    copy_reviews(gcs, bucket)
    before = gcs.objects(bucket)
    first, second, third, *_ = shards(gcs, bucket)
    index = f"out/index/{third.removeprefix('out/')}.offsets"
    gcs.delete(bucket, first)
    gcs.write(bucket, second, before[second][:-1] + b"?")
    gcs.delete(bucket, index)
    verified = building.command("verify", f"gs://{bucket}/out", "--json")
    assert verified.status == 1
    damaged = {f"out/{file['file']}" for file in json.loads(verified.out)}
    assert {first, second, index} <= damaged
    done(building.command("verify", f"gs://{bucket}/out", "--repair"))
    assert gcs.objects(bucket) == before
    done(building.command("verify", f"gs://{bucket}/out"))


@pytest.mark.slow
def test_the_source_may_be_in_a_bucket_too(gcs: Gcs, bucket: str) -> None:
    gcs.write(bucket, "data/train.jsonl", (building.REVIEWS / "train.jsonl").read_bytes())
    packed = gzip.compress((building.REVIEWS / "validation.jsonl").read_bytes())
    gcs.write(bucket, "data/validation.jsonl.gz", packed)
    data, output = f"gs://{bucket}/data", f"gs://{bucket}/out"
    options = {"label_column": "label", "shard_size": "20kB"}
    done(building.command("plan", data, *building.options("", **options, workers=None)[2:]))
    done(building.command("build", data, *building.options(output, **options, name="reviews")))
    named = ("--source", data, "--split", "train", "--shard", 0, "--record", 0, "--json")
    traced = done(building.command("trace", output, *named))
    assert f"gs://{bucket}/data/train.jsonl" in traced.out, "where the record came from"
    local = building.shard_bytes(building.reviews())
    assert {name: gcs.read(bucket, f"out/{name}") for name in local} == local


@pytest.mark.slow
def test_a_bucket_gets_the_files_of_a_local_append(gcs: Gcs, bucket: str, tmp_path: Path) -> None:
    root = f"gs://{bucket}/out"
    source = appended.json_lines(tmp_path / "data" / "train-a.jsonl", range(60)).parent
    done(appended.build(source, root))
    before = gcs.objects(bucket, "out/")
    appended.json_lines(source / "train-b.jsonl", range(60, 100))
    with pytest.MonkeyPatch.context() as patch:
        stop_at_second_shard(patch)
        assert "stopped" in appended.build(source, root, "--append").err
    assert gcs.objects(bucket, "out/")["manifest.json"] == before["manifest.json"]
    done(appended.build(source, root, "--append"))
    assert sorted(appended.numbers(root)) == list(range(100))
    assert building.command("verify", root).status == 0
    after = gcs.objects(bucket, "out/")
    assert all(after[name] == content for name, content in before.items() if name.endswith((".tfrecord", ".offsets")))
    data, local = appended.grown(tmp_path / "local")
    done(appended.build(data, local, "--append"))
    assert {name: content for name, content in after.items() if not name.endswith("source.json")} == {
        name: content for name, content in building.files(local).items() if not name.endswith("source.json")
    }


@pytest.mark.slow
def test_a_bucket_gets_the_files_of_a_local_export(gcs: Gcs, bucket: str, tmp_path: Path) -> None:
    copy_reviews(gcs, bucket)
    command = ["export", f"gs://{bucket}/out", "--to", "parquet", "--output", f"gs://{bucket}/exported", "--workers", 1]
    made, real = [], exporting.export_shard

    def stop_at_second(task: exporting.ExportTask, progress: Progress) -> dict[str, int]:
        made.append(task)
        if len(made) >= 2:
            raise OutputError("stopped", remedy="go on")
        return real(task, progress)

    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, export_shard=stop_at_second)
        assert building.command(*command).error[0] == "stopped"
    outcome = building.command(*command)
    assert "3 shards exported, 1 kept" in outcome.err, outcome.err
    assert building.command("verify", f"gs://{bucket}/exported").status == 0
    assert building.command("export", building.reviews(), "--to", "parquet", "--output", tmp_path / "out").status == 0
    assert gcs.objects(bucket, "exported/") == building.files(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_faults_of_the_network_change_no_byte(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"unavailable": 0.05, "cut_uploads": 0.1, "cut_downloads": 0.05, "lost_answers": 0.05}
    faults = Faults(stall_at=60, stall_seconds=3, **shares)
    with through(gcs, faults, monkeypatch) as faulty:
        done(build(bucket, label_column="label"))
        done(building.command("verify", f"gs://{bucket}/out"))
        counts = faulty.counts
    assert all(counts[kind] for kind in (*shares, "stalls")), counts
    assert gcs.objects(bucket, "out/") == building.files(building.reviews())
