"""Beam's runners: the bytes of a build without them, functions that travel, and options and errors on the way."""

import contextlib
import functools
import json
import os
import pickle
import re
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.runners.runner import PipelineResult

from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.job import Job
from pipelines.prepare.dataset.plan_files import TaskKey
from pipelines.prepare.launch import launcher
from pipelines.prepare.runners import beam_options, failures, on_beam
from pipelines.prepare.runners.failures import Reported
from pipelines.prepare.shards import shard_writer
from pipelines.prepare.shards.shard_maker import ShardMaker
from tests import building
from tests.building import REVIEWS, Outcome, read_manifest, reviews
from tests.support import limits, seams, servers
from tests.support.commits import committed, request
from tfrecord_io import errors, manifest
from tfrecord_io.errors import ConfigError, CorruptRecordError, OutputError, PrepError, RowsRejectedError


def build(output: object, *beam_args: str, **changes: object) -> Outcome:
    options = building.options(output, **{"label_column": "label", **changes})
    return building.command("build", REVIEWS, "--json", *options, "--", *beam_args)


DIRECT = "--runner=DirectRunner"


@pytest.mark.slow
@pytest.mark.parametrize("beam_args", [["--runner=direct", "--direct_running_mode=in_memory"], ["--job_name=x"]])
def test_a_direct_runner_makes_the_bytes_of_a_plain_build(tmp_path: Path, beam_args: list[str]) -> None:
    """With a relative output, which workers in another folder would not find."""
    outcome = build(os.path.relpath(tmp_path / "out"), *beam_args)
    assert outcome.status == 0, outcome.err
    assert building.files(tmp_path / "out") == building.files(reviews())
    assert json.loads(outcome.out)["manifest_sha256"] == manifest.digest(read_manifest(reviews()))


@pytest.mark.slow
def test_a_whole_build_goes_through_any_fsspec_scheme() -> None:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    try:
        outcome = build("memory://bucket/out")
        assert outcome.status == 0, outcome.err
        store = fsspec.filesystem("memory").store
        files = {path.removeprefix("/bucket/out/"): bytes(file.getbuffer()) for path, file in store.items()}
        assert files == building.files(reviews())
        assert json.loads(build("memory://bucket/out").out)["shards_made"] == 0
        assert building.command("verify", "memory://bucket/out").status == 0
        assert building.command("inspect", "memory://bucket/out").status == 0
        assert build("memory://bucket/out", seed=1).status == 1
        assert build("memory://bucket/out", seed=1, overwrite=True).status == 0
    finally:
        fsspec.filesystem("memory").store.clear()


PICKLERS: list[Callable[[Any], Any]] = [
    lambda value: pickle.loads(pickle.dumps(value)),
    lambda value: pickler.loads(pickler.dumps(value)),
]


def planned(job: Job, split: str) -> list[TaskKey]:
    """The keys of a split's tasks, after the plan of `reviews()`."""
    (folder,) = reviews().glob(f".prep/*/{split}")
    shutil.copytree(folder, job.work_path(split), ignore=shutil.ignore_patterns("receipt-*"))
    plan = plan_files.read(job, split)
    assert plan is not None
    return [plan_files.key_of(task) for task in plan.tasks()]


@pytest.mark.slow
@pytest.mark.parametrize("travel", PICKLERS, ids=["pickle", "beam"])
def test_the_functions_run_after_travelling(tmp_path: Path, travel: Callable[[Any], Any]) -> None:
    opened = building.resolved(request(str(tmp_path / "out")))
    opened.reserve()
    keys = [key for split in opened.job.splits for key in planned(opened.job, split)]

    write = travel(on_beam.Call(ShardMaker(opened.job)))
    write.setup()
    ends = [end for key in keys for end in write.process(travel(key))]
    assert len(ends) == len(keys)

    finish = functools.partial(on_beam.finish_after, functools.partial(committed, opened))
    assert list(travel(on_beam.Call(finish)).process(ends)) == [None]
    assert building.files(tmp_path / "out") == building.files(reviews())


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, small_bytes=0, threaded_bytes=0)


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_worker_processes_change_no_byte_and_open_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner unpickles its messages, so anyone who reached a port could run code."""
    seams.put(monkeypatch, cores_of_shards=lambda: 3)
    before, over = servers.listening(os.getpid()), threading.Event()
    seen: set[int] = set()
    pids: set[int] = set()

    def look() -> None:
        while not over.wait(0.05):
            pids_now = servers.descendants(os.getpid())
            pids.update(pids_now)
            seen.update(port for pid in (os.getpid(), *pids_now) for port in servers.listening(pid))

    with socket.socket() as own:  # what looks for ports does find one
        own.bind(("127.0.0.1", 0))
        own.listen()
        assert servers.listening(os.getpid()) == [*before, own.getsockname()[1]]
    watcher = threading.Thread(target=look)
    watcher.start()
    outcome = build(tmp_path / "out", workers=3, shard_size="6kB")
    over.set()
    watcher.join()
    assert outcome.status == 0, outcome.err
    assert building.files(tmp_path / "out") == building.files(reviews(shard_size="6kB"))
    assert seen == set(before)
    assert len(pids) >= 3
    pids -= building.idle_pids()  # those that wait for a call end with this process
    left = [pid for pid in pids if psutil.pid_exists(pid) and "spawn_main" in " ".join(psutil.Process(pid).cmdline())]
    assert not left


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_a_worker_that_dies_is_an_error_that_names_its_shard(tmp_path: Path) -> None:
    killed: list[int] = []
    rows = [json.loads(line) for line in (REVIEWS / "train.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")  # hundreds of shards: seconds
    arguments = [tmp_path / "train.parquet", *building.options(tmp_path / "out", shard_size="2kB", workers=2)]

    def kill() -> None:
        while not killed:
            time.sleep(0.01)
            pids = {*servers.descendants(os.getpid())} if len(list(tmp_path.glob("out/.prep/*/*/receipt*"))) else {*()}
            for pid in sorted(pids - building.idle_pids()):
                with contextlib.suppress(psutil.Error):
                    if "spawn_main" in " ".join(psutil.Process(pid).cmdline()):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)
                        return

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = building.command("build", *arguments)
    killer.join()
    made = r"train-train-0.*tfrecord: the worker process that made it was killed, possibly because memory ran out"
    assert re.match(made, outcome.error[0])
    assert "run the same command again, which keeps finished shards" in outcome.error[1]
    assert "--shard-size" in outcome.error[1]
    assert building.command("build", *arguments).status == 0
    plain = building.built(tmp_path / "train.parquet", shard_size="2kB")
    assert building.files(tmp_path / "out") == building.files(plain)


@pytest.mark.parametrize(
    ("beam_args", "cause"),
    [
        (["--no_such_option=1"], "Beam does not know --no_such_option=1"),
        (["--direct_num_worker=3", "--job_name=x"], "Beam does not know --direct_num_worker=3"),
        (["stray"], "Beam does not know stray"),
        (["-x"], "Beam does not know -x"),
        (["--runner=DataflowRunner", "--zonee=x"], "Beam does not know --zonee=x"),
        (["--direct_num_workers=many"], "Beam: argument --direct_num_workers: invalid int value: 'many'"),
        (["--direct_running_mode=multi_processing"], "several workers of DirectRunner open ports"),
        ([DIRECT, "--direct_num_workers=2"], "several workers of DirectRunner open ports"),
        (["--direct_running_mode=fast"], "Beam: argument --direct_running_mode: invalid choice: 'fast'"),
        (["--runner=NoSuchRunner"], "Beam: Unexpected pipeline runner: NoSuchRunner"),
        (["--runner=PortableRunner"], "--runner=PortableRunner without --job_endpoint"),
    ],
)
def test_options_that_beam_does_not_take_end_at_once(tmp_path: Path, beam_args: list[str], cause: str) -> None:
    outcome = build(tmp_path / "out", *beam_args)
    assert outcome.status == 2
    assert cause in outcome.error[0]
    assert len(outcome.err.splitlines()) == 2
    assert not (tmp_path / "out").exists()


def test_runners_of_other_systems_get_options_that_beam_does_not_know() -> None:
    options = beam_options.parse(["--runner=FlinkRunner", "--no_such_option=2"])
    assert options.get_all_options(retain_unknown_options=True)["no_such_option"] == "2"


refused = seams.raising(OutputError("out/x: disk; full", remedy="free some; space"))


@pytest.mark.slow
@pytest.mark.parametrize("beam_args", [[], [DIRECT]])
@pytest.mark.parametrize("place", ["write", "commit"])
def test_an_error_arrives_as_it_was_and_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beam_args: list[str], place: str
) -> None:
    monkeypatch.setattr({"write": shard_writer, "commit": launcher}[place], place, refused)
    outcome = build(tmp_path / "out", *beam_args)
    assert outcome.error == ("out/x: disk; full", "free some; space")
    assert len([line for line in outcome.err.splitlines() if "rows/s" not in line]) == 3, "slow machines show progress"
    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.undo()
    assert build(tmp_path / "out", *beam_args).status == 0, "a failure is forgotten by the next run"
    assert building.files(tmp_path / "out") == building.files(reviews())


@pytest.mark.slow
def test_a_bug_is_two_lines_and_a_traceback_for_verbose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, write_shard=seams.raising(ArithmeticError("a bug")))
    short, long = (build(tmp_path / "out", DIRECT, verbose=verbose) for verbose in (None, True))
    assert short.error[0].startswith("the job failed: ArithmeticError: a bug")
    assert "in fail" in long.err


@pytest.mark.slow
def test_after_an_interrupt_a_direct_runner_begins_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of Beam's job can be neither stopped nor joined."""
    made, go_on = [], threading.Event()
    write = shard_writer.write

    def slow(*args: Any, **kwargs: Any) -> Any:
        made.append(args[0])
        go_on.wait(limits.ANSWER)
        return write(*args, **kwargs)

    def interrupted(done: Any) -> None:
        while not made and not done.done():  # a separate job ingests the source
            time.sleep(0.01)
        if made:
            raise KeyboardInterrupt

    seams.put(monkeypatch, write_shard=slow, wait_for_job=interrupted)
    before = {*threading.enumerate()}
    assert build(tmp_path / "out", DIRECT).error[0] == "interrupted before the dataset was complete"
    go_on.set()
    for thread in {*threading.enumerate()} - before:
        thread.join(limits.ANSWER if thread.name == "in_background" else 0)
    assert len(made) == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("kind", [RowsRejectedError, OutputError, CorruptRecordError, ConfigError])
def test_an_error_is_read_back_from_a_runners_text(kind: type[errors.PrepError]) -> None:
    error = kind("train[3]: a; b\n  [while running 'x'] \u2014 {}", remedy='do "this"; and that')
    text = f"Traceback:\n  File x\nfailures.Reported: {Reported.of(error)} [while running 'WriteShard']\n\nmore"
    read = failures.from_text(text)
    assert type(read) is kind
    assert (read.cause, read.remedy) == (error.cause, error.remedy)


def test_a_report_from_another_process_and_its_traceback_hold_no_secret() -> None:
    error = OutputError("ftp://me:hush@host: cannot be written", remedy="use https://host/x?sig=hush")
    error.__cause__ = OSError("no answer from https://host/x?X-Goog-Signature=hush")

    with pytest.raises(Reported, match="OutputError") as caught, failures.reported():
        raise error
    assert "hush" not in "".join(traceback.format_exception(caught.value))
    read = failures.from_text(str(caught.value))
    assert (read.cause, read.remedy) == ("ftp://...@host: cannot be written", "use https://host/x?...")


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("x\nModuleNotFoundError: No module named 'pipelines' [while", "a worker has no module pipelines", "install"),
        ("x\nRuntimeError: Channel closed prematurely.\n", "a worker process died", failures.AGAIN),
        (
            '<Rpc:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "Socket closed"\n>',
            "broke: Socket closed",
            failures.AGAIN,
        ),
        ("status = StatusCode.DEADLINE_EXCEEDED\n", "did not end within --job_server_timeout", "give a larger one"),
        ("Traceback\n  x\nKeyError: 'beam:env:process:v1'\n\n", "the job failed: KeyError: 'beam:env:", "--verbose"),
        (str(Reported.of(OutputError("a long cause", remedy="x")))[:60], "the job failed: ", failures.AGAIN),
        ("", "the job failed: no reason was given", "--verbose"),
    ],
)
def test_what_else_a_runner_says_gets_a_cause_and_a_remedy(text: str, cause: str, remedy: str) -> None:
    read = failures.from_text(text)
    assert cause in read.cause
    assert remedy in read.remedy


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED", "UPDATED", "DRAINED"])
def test_a_job_that_ends_in_another_state_than_done_is_an_error(state: str) -> None:
    with pytest.raises(PrepError, match=f"ended in the state {state}, expected DONE"):
        on_beam._require_done(PipelineResult(state), None)


@pytest.mark.slow
def test_a_job_that_is_done_without_a_manifest_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, commit=lambda *_, **__: None)  # as on another machine with a separate disk
    outcome = build(tmp_path / "out", DIRECT)
    assert outcome.error[0].endswith("the job is done, but there is no manifest.json here")
    assert "gs://" in outcome.error[1]


class TestJobService:
    """What --job_endpoint leads to."""

    ARGS = ("--runner=PortableRunner", "--environment_type=LOOPBACK")

    def test_a_service_without_answer_ends_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seams.put(monkeypatch, connect_seconds=1)
        with socket.socket() as taken:  # bound, but nobody listens
            taken.bind(("localhost", 0))
            endpoint = f"localhost:{taken.getsockname()[1]}"
            outcome = build(tmp_path / "out", *self.ARGS, f"--job_endpoint={endpoint}")
        assert outcome.status == 1
        assert outcome.error[0] == f"no job service answers at {endpoint} within 1 second"
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_a_job_server_to_be_started_by_a_thread_is_an_error(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(build, tmp_path / "out", "--runner=FlinkRunner", "--flink_master=[local]").result()
        assert outcome.error[0].startswith("--runner=FlinkRunner without --job_endpoint, in a thread")

    @pytest.mark.parametrize(
        ("more", "seconds"), [([], 30 * 24 * 3600), (["--job_server_timeout=7"], 7), (["--job-server-timeout=7"], 7)]
    )
    def test_beams_limit_for_requests_does_not_end_a_long_job(self, more: list[str], seconds: int) -> None:
        options = beam_options.parse([*self.ARGS, "--job_endpoint=localhost:1", *more])
        assert options.view_as(PortableOptions).job_server_timeout == seconds
