"""A Dataflow job: requests to the service, the workers' environment and results, and local messages."""

import dataclasses
import importlib.util
import io
import json
import re
import time
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.dataflow import dataflow_runner

from pipelines.prepare.launch import launcher
from pipelines.prepare.process.progress import Counts, Progress
from pipelines.prepare.runners import dataflow, on_beam, shipping
from pipelines.prepare.runners.failures import AGAIN, Reported
from pipelines.prepare.runners.runner import Work
from pipelines.prepare.shards.shard_maker import ShardMaker
from pipelines.prepare.storage import gcs
from tests import building
from tests.building import REVIEWS, Outcome, reviews
from tests.cloud import emulator
from tests.cloud.emulator import Gcs
from tests.support import dataflow_service, processes, seams
from tests.support.commits import request
from tests.support.dataflow_service import JOB_IDS, End, Service
from tfrecord_io import manifest
from tfrecord_io.errors import RowsRejectedError

TOKEN = "hf_ThisIsNoTokenOfAnybody"


@pytest.fixture(scope="module")
def store() -> Iterator[Gcs]:
    """gs:// for this module, in this process and others."""
    with emulator.running() as server, pytest.MonkeyPatch.context() as environment:
        for name in ("STORAGE_EMULATOR_HOST", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            environment.setenv(name, server.environment()[name])
        environment.setenv("no_proxy", "localhost,127.0.0.1")
        yield server
    gcs.forget()


def in_place(folder: Path) -> Path:
    rows = {"text": [f"row {index}" for index in range(50)], "label": ["yes", "no"] * 25}
    pq.write_table(pa.table(rows), folder / "train.parquet")
    return folder / "train.parquet"


def arguments(bucket: str, service: Service, *more: str, dataset: object = REVIEWS) -> list[object]:
    options = building.options(f"gs://{bucket}/out", label_column="label")
    return ["build", dataset, "--json", *options, "--", *service.beam_args, f"--temp_location=gs://{bucket}/tmp", *more]


@pytest.fixture(scope="module")
def launched(store: Gcs, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished job, launched through the command line by a process that has a token for the Hub, and all that there
    is to know of it.
    """
    folder = tmp_path_factory.mktemp("worker")
    bucket = store.bucket()
    with dataflow_service.running(dataflow_service.worker_in_new_environment(store, folder)) as service:
        environment = store.environment(HF_TOKEN=TOKEN, HF_HUB_OFFLINE="1", no_proxy="localhost,127.0.0.1")
        ended = processes.run(building.program(*arguments(bucket, service)), env=environment)
    assert ended.returncode == 0, ended.stderr
    texts = {"out": ended.stdout, "err": ended.stderr, "request": service.requests[-1], "asked": service.asked}
    objects = {"staged": store.objects(bucket, "tmp/"), "made": store.objects(bucket, "out/")}
    return types.SimpleNamespace(**texts, **objects, report=json.loads((folder / "report.json").read_text()))


@pytest.mark.slow
class TestAFinishedJob:
    def test_its_dataset_is_the_one_of_a_local_build(self, launched: Any) -> None:
        assert launched.made == building.files(reviews())
        assert json.loads(launched.out)["manifest_sha256"] == manifest.digest(building.read_manifest(reviews()))

    def test_workers_have_what_was_staged_and_no_tensorflow(self, launched: Any) -> None:
        assert "/environment/" in launched.report["code"]
        assert "tests" not in launched.report["modules"]
        assert "tensorflow" not in launched.report["modules"]

    def test_no_token_is_in_the_request_or_in_anything_that_was_written(self, launched: Any) -> None:
        assert TOKEN not in json.dumps(launched.request)
        contents = [*launched.staged.values(), *launched.made.values()]
        for name, content in launched.staged.items():
            if name.endswith(".whl"):
                with zipfile.ZipFile(io.BytesIO(content)) as package:
                    contents += map(package.read, package.namelist())
        assert len(contents) > 80
        assert not [content for content in contents if TOKEN.encode() in content]
        assert TOKEN not in launched.err

    def test_what_is_sent_is_small_has_no_session_and_base_dependencies_only(self, launched: Any) -> None:
        wheel = f"prep_tfrecords-{shipping.versions()['prep-tfrecords']}-py3-none-any.whl"
        staged = {name.rpartition("/")[2]: content for name, content in launched.staged.items()}
        assert set(staged) == {"extra_packages.txt", wheel, "pipeline.pb", "requirements.txt"}
        assert launched.request["environment"]["sdkPipelineOptions"]["options"]["save_main_session"] is False
        assert len(staged["pipeline.pb"]) < 60_000
        assert len(staged[wheel]) < 700_000
        pins = staged["requirements.txt"].decode().split()
        for name in ("tokenizers", "transformers"):
            assert f"{name}=={shipping.versions()[name]}" in pins
        assert staged["extra_packages.txt"].decode().split() == [wheel]
        base = [line for line in launched.report["requires"] if "extra ==" not in line]
        assert {"apache-beam", "datasets", "tokenizers"} <= {re.split("[<>]", line)[0] for line in base}
        assert not [line for line in base if "tensorflow" in line]

    def test_the_request_names_beams_own_image_and_the_job(self, launched: Any) -> None:
        environment = launched.request["environment"]
        (pool,) = environment["workerPools"]
        assert pool["workerHarnessContainerImage"].endswith(f"_sdk:{beam.__version__}")
        assert "no_use_multiple_sdk_containers" not in environment["experiments"], "a process for each core"
        assert launched.request["name"].startswith("prep-tfrecords-reviews-")
        assert launched.asked[0] == "POST /v1b3/projects/some-project/locations/us-central1/jobs"

    def test_metrics_have_names_and_agree_with_the_manifest(self, launched: Any) -> None:
        splits = building.read_manifest(reviews()).splits.values()
        counts = {"rows": sum(split.ledger.rows_in for split in splits), "rejected": 0, "filtered": 0}
        counts |= {"in_other_splits": 0, "tokens": sum(split.num_tokens for split in splits)}
        counts["bytes"] = sum(split.num_bytes for split in splits)
        counts["shards"] = sum(len(split.shards) for split in splits)
        assert launched.report["counters"] == {f"prep-tfrecords:{name}": number for name, number in counts.items()}

    def test_the_link_to_the_job_is_shown_and_nothing_of_beams_own_talk(self, launched: Any) -> None:
        job = JOB_IDS[0]
        link = f"https://console.cloud.google.com/dataflow/jobs/us-central1/{job}?project=some-project"
        assert f"Dataflow job {job}: {link}" in launched.err.splitlines()
        assert "Traceback" not in launched.err
        assert "No module named" not in launched.err


def no_package(folder: Path) -> Path:
    path = folder / "prep_tfrecords-0-py3-none-any.whl"
    path.write_bytes(b"packed")
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam waits five seconds between its questions."""
    clock = types.SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(min(seconds, 0.05)))
    monkeypatch.setattr(dataflow_runner, "time", clock)
    seams.put(monkeypatch, wheel=no_package)


def launch(store: Gcs, service: Service, *more: str) -> Outcome:
    return building.command(*arguments(store.bucket(), service, *more))


def job_without_workers(request: Any) -> End:
    return End()


@pytest.mark.usefixtures("quick")
class TestOtherEnds:
    @pytest.mark.slow
    def test_a_workers_error_arrives_as_cause_and_remedy(self, store: Gcs) -> None:
        error = RowsRejectedError("97 of 400 rows cannot be used", remedy="mend them")
        text = f"Traceback (most recent call last):\n  File x\npipelines.failures.Reported: {Reported.of(error)} [while"
        end = End(state="JOB_STATE_FAILED", message=text)
        with dataflow_service.running(lambda request: end) as service:
            assert launch(store, service).error == ("97 of 400 rows cannot be used", "mend them")

    @pytest.mark.slow
    def test_a_second_launcher_of_the_same_build_is_refused_by_the_service(self, store: Gcs) -> None:
        with dataflow_service.running(job_without_workers) as service:
            service.refusal = "The workflow could not be created. There is already an active job named prep-x-1. If"
            outcome = launch(store, service)
        assert outcome.error[0].startswith("a Dataflow job named prep-x-1 is running")
        assert "gcloud dataflow jobs cancel" in outcome.error[1]

    @pytest.mark.slow
    @pytest.mark.parametrize("ingests", [True, False])
    def test_an_interrupt_leaves_the_job_alone_and_says_how_to_end_it(
        self, store: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ingests: bool
    ) -> None:
        bucket, (job, _) = store.bucket(), JOB_IDS
        source = REVIEWS / "train.jsonl" if ingests else in_place(tmp_path)
        dataset = f"gs://{bucket}/data/{source.name}"
        fsspec.filesystem("gs").put(str(source), dataset)

        def interrupted(done: Any) -> None:
            done.result()
            raise KeyboardInterrupt

        seams.put(monkeypatch, wait_for_job=interrupted)
        with dataflow_service.running(job_without_workers) as service:
            outcome = building.command(*arguments(bucket, service, dataset=dataset))
            assert [request for request in service.asked if request.startswith("PUT")] == []
        cause, remedy = outcome.error
        does = "copies the source" if ingests else "completes the dataset"
        assert cause == f"interrupted, but the Dataflow job {job} still runs and {does} without this process"
        assert f"gcloud dataflow jobs cancel {job} --region=us-central1 --project=some-project" in remedy

    @pytest.mark.slow
    def test_the_services_counters_are_shown_until_it_ends_a_users_own_package_wins(
        self, store: Gcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seams.put(monkeypatch, poll_seconds=0.05)
        seen: list[Counts] = []
        progress = Progress()
        monkeypatch.setattr(launcher, "Progress", lambda: progress)

        def watch(request: Any) -> End:
            for rows in (100, 250):
                service.counters = {"rows": rows, "tokens": 9 * rows, "bytes": 70 * rows, "shards": rows // 100}
                while progress.read().rows != rows:
                    time.sleep(0.01)
                seen.append(progress.read())
            return End(state="JOB_STATE_CANCELLED")

        own = tmp_path / "own-1.0.tar.gz"
        own.write_bytes(b"packed")
        with dataflow_service.running(watch) as service:
            outcome = launch(store, service, f"--extra_package={own}", "--job_name=mine")
        assert outcome.error == ("the Dataflow job ended in the state CANCELLED, expected DONE", AGAIN)
        (request,) = service.requests
        assert request["name"] == "mine"
        assert request["environment"]["sdkPipelineOptions"]["options"]["extra_packages"] == [str(own)]
        staged = {package["name"] for package in request["environment"]["workerPools"][0]["packages"]}
        assert staged == {"own-1.0.tar.gz", "extra_packages.txt"}
        first = Counts(rows=100, tokens=900, num_bytes=7_000, shards=1)
        assert seen == [first, Counts(rows=250, tokens=2_250, num_bytes=17_500, shards=2)]


@pytest.mark.parametrize(
    ("beam_args", "cause"),
    [
        ([], "--runner=DataflowRunner without --project and --temp_location"),
        (["--temp_location=gs://b/t"], "--runner=DataflowRunner without --project"),
        (["--project=p"], "--runner=DataflowRunner without --temp_location"),
        (["--project=p", "--temp_location=gs://b/t"], "is a folder on this machine, which Dataflow's workers cannot"),
    ],
)
def test_what_is_missing_is_said_before_any_work(tmp_path: Path, beam_args: list[str], cause: str) -> None:
    options = building.options(tmp_path / "out")
    outcome = building.command("build", REVIEWS, *options, "--", "--runner=DataflowRunner", *beam_args)
    assert outcome.status == 2
    assert cause in outcome.error[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_bucket_for_temporary_files_that_is_not_there_is_an_error_before_any_work(store: Gcs) -> None:
    args = ["--runner=DataflowRunner", "--project=some-project", "--temp_location=gs://nobody-has-this/tmp"]
    outcome = building.command("build", REVIEWS, *building.options(f"gs://{store.bucket()}/out"), "--", *args)
    assert outcome.status == 1
    assert "gs://nobody-has-this" in outcome.error[0]


@pytest.mark.slow
def test_without_googles_libraries_an_error_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    missing = "google.cloud.dataflow"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == missing else find_spec(name, *_))
    args = ["--runner=DataflowRunner", "--project=p", "--temp_location=gs://b/t"]
    outcome = building.command("build", REVIEWS, *building.options("gs://b/out"), "--", *args)
    assert outcome.status == 2
    assert "apache-beam[gcp]" in outcome.error[1]


@pytest.mark.slow
def test_the_graph_of_ten_thousand_shards_is_small(tmp_path: Path) -> None:
    job = dataclasses.replace(building.resolved(request(str(tmp_path))).job, root="gs://bucket/folder/out")
    keys = [("train", index, 10_000) for index in range(10_000)]
    graph = beam.Pipeline(runner="DirectRunner")
    work = Work(function=ShardMaker(job), tasks=keys, finish=print, processes=0, name="x", place="gs://bucket")
    on_beam.add_steps(graph, work, job_id="x" * 32)
    assert len(graph.to_runner_api().SerializeToString()) < 100_000
    assert len(pickler.dumps(on_beam.Call(ShardMaker(job), versions=shipping.versions()))) < 5_000


def test_the_jobs_name_follows_from_its_work_and_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(name: str = "reviews", place: str = "gs://bucket/folder/out f") -> str:
        options = PipelineOptions([])
        dataflow.prepare(options, name=name, place=place, folder=str(tmp_path))
        job_name: str = options.view_as(GoogleCloudOptions).job_name
        return job_name

    monkeypatch.setattr(shipping, "ship", lambda *_: None)
    assert name_of() == name_of()
    names = [name_of(), name_of(place="gs://bucket/other f"), name_of("reviews-ingest"), name_of(place="x")]
    names += [name_of(name="Ä_B..c" * 30), name_of(name="___")]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 63
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert "--" not in name
