"""A delayed upload replaces nothing newer on Google Cloud Storage, because an upload names the version it replaces."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipelines.prepare import runners, storage
from pipelines.prepare.dataset import plan_files, receipts
from pipelines.prepare.launch import split_plans
from pipelines.prepare.launch.open_job import OpenJob, open_job, open_request
from pipelines.prepare.plan.planning import ShardTask
from pipelines.prepare.process.progress import Progress
from pipelines.prepare.shards import shard_files, shard_writer
from tests import building
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Faults, through
from tests.support import seams
from tests.support.commits import committed, request
from tfrecord_io import manifest
from tfrecord_io.errors import OutputError

pytestmark = pytest.mark.slow

BLOCK_BYTES = 1 << 18
# In one request, and in a session of three.
SIZES = [10, 2 * BLOCK_BYTES + 1]


@pytest.fixture(autouse=True)
def _small_and_quick(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, block_bytes=BLOCK_BYTES)


@pytest.mark.parametrize("size", SIZES)
class TestObjects:
    def test_what_was_there_is_replaced(self, gcs: Gcs, bucket: str, size: int) -> None:
        path = f"gs://{bucket}/file"
        for content in (b"a" * size, b"b" * size):
            storage.write_bytes(path, content, replacing=storage.versions([path])[path])
            assert gcs.read(bucket, "file") == content

    def test_what_came_since_stays(self, gcs: Gcs, bucket: str, size: int) -> None:
        path = f"gs://{bucket}/file"
        gcs.write(bucket, "file", b"old")
        for seen in (0, storage.versions([path])[path]):
            gcs.write(bucket, "file", b"n" * size)
            with pytest.raises(OutputError, match=f"{path}: not written, since another job has") as caught:
                storage.write_bytes(path, b"o" * size, replacing=seen)
            now = storage.versions([path])[path]
            assert f"found version {now}, expected {seen or 'none'}" in caught.value.cause
            assert "let one job at a time write" in caught.value.remedy
            assert "upload_id" not in "".join(traceback.format_exception(caught.value))
            assert gcs.read(bucket, "file") == b"n" * size

    def test_what_was_deleted_since_does_not_come_back(self, gcs: Gcs, bucket: str, size: int) -> None:
        path = f"gs://{bucket}/file"
        gcs.write(bucket, "file", b"old")
        seen = storage.versions([path])[path]
        gcs.delete(bucket, "file")
        with pytest.raises(OutputError, match=f"since this file was deleted .*found version none, expected {seen}"):
            storage.write_bytes(path, b"o" * size, replacing=seen)
        assert gcs.names(bucket) == []

    def test_the_same_content_is_no_conflict(self, gcs: Gcs, bucket: str, size: int) -> None:
        path = f"gs://{bucket}/file"
        gcs.write(bucket, "file", b"x" * size)
        before = storage.versions([path])
        storage.write_bytes(path, b"x" * size, replacing=0)
        assert storage.versions([path]) == before

    def test_lost_answers_are_harmless(self, gcs: Gcs, bucket: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        with through(gcs, Faults(lost_answers=0.5), monkeypatch) as running:
            for number in range(4):
                storage.write_bytes(f"gs://{bucket}/{number}", bytes([number]) * size, replacing=0)
            assert running.counts["lost_answers"] > 1
        assert gcs.objects(bucket) == {str(number): bytes([number]) * size for number in range(4)}


def test_elsewhere_nothing_is_asked_and_the_last_one_wins(tmp_path: Any) -> None:
    for path in (str(tmp_path / "file"), "memory://folder/file"):
        assert storage.versions([path]) == {}
        for content in (b"first", b"second"):
            storage.write_bytes(path, content, replacing=0)
            assert storage.read_bytes(path) == content


@pytest.fixture
def job(gcs: Gcs, bucket: str) -> OpenJob:
    """A job in a bucket that has made every shard, and has not committed."""
    for name, content in building.files(building.reviews()).items():
        if name != manifest.FILE_NAME:
            gcs.write(bucket, f"out/{name}", content)
    return open_job(open_request(request(f"gs://{bucket}/out")), runner=runners.local(), progress=Progress())


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """`delayed(name, meanwhile)`: call `meanwhile` before the first upload of an object that ends in `name`."""
    waiting: dict[str, Callable[[], object]] = {}
    write_now = storage.write_atomic

    def write_later(path: str, *arguments: Any, **options: Any) -> None:
        for end in [end for end in waiting if path.endswith(end)]:
            waiting.pop(end)()
        write_now(path, *arguments, **options)

    with monkeypatch.context() as patch:
        seams.put(patch, write_file=write_later)
        yield waiting.__setitem__
    assert not waiting, "the upload that was to be delayed"


Delayed = Callable[[str, Callable[[], object]], None]


class TestJobs:
    def test_a_delayed_commit_does_not_replace_the_manifest_of_a_newer_job(
        self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed
    ) -> None:
        newer = manifest.dump(dataclasses.replace(building.read_manifest(building.reviews()), fingerprint="0" * 32))
        delayed(manifest.FILE_NAME, lambda: gcs.write(bucket, "out/manifest.json", newer))
        with pytest.raises(OutputError, match=r"out/manifest\.json: not written, since another job"):
            committed(job)
        assert gcs.read(bucket, "out/manifest.json") == newer

    def test_two_splits_committed_at_once_are_kept(self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed) -> None:
        whole = building.read_manifest(building.reviews())

        def one_split(name: str) -> OpenJob:
            splits = {name: job.job.splits[name]}
            return dataclasses.replace(job, job=dataclasses.replace(job.job, splits=splits))

        delayed("dataset_info.json", lambda: committed(one_split("validation")))
        with pytest.raises(OutputError, match="not written, since another job has written this file"):
            committed(one_split("train"))
        assert building.read_manifest(f"gs://{bucket}/out").splits.keys() == {"validation"}
        committed(one_split("train"))
        assert building.read_manifest(f"gs://{bucket}/out") == whole

    def test_two_that_commit_the_same_agree(self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed) -> None:
        delayed(manifest.FILE_NAME, lambda: committed(job))
        committed(job)
        assert gcs.objects(bucket, "out/") == building.files(building.reviews())

    def test_a_plan_for_other_rows_that_came_meanwhile_stays(self, gcs: Gcs, bucket: str, job: OpenJob) -> None:
        plan, groups = split_plans.plan_one(job, "train")[0], job.job.splits["train"].groups
        before = gcs.objects(bucket)
        plan_files.write(job.job, plan, groups)
        assert gcs.objects(bucket) == before
        with pytest.raises(OutputError, match=r"train/plan-00000\.parquet: not written, since another job"):
            plan_files.write(job.job, dataclasses.replace(plan, rows=plan.rows[:1], spans=plan.spans_of(0, 1)), groups)
        assert gcs.objects(bucket).items() >= before.items(), "the plan that was there"

    @pytest.mark.parametrize("part", ["shard", "index", "receipt"])
    def test_a_delayed_worker_does_not_replace_what_a_newer_job_has_made(
        self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed, part: str
    ) -> None:
        task = first_task(job)
        name = job.job.shard_name(task)
        path = {"shard": name, "index": f"index/{name}.offsets", "receipt": job.job.receipt_path(task)}[part]
        name = "out/" + path.removeprefix(f"gs://{bucket}/out/")
        for object_name in gcs.names(bucket, name):
            gcs.delete(bucket, object_name)
        delayed(name, lambda: gcs.write(bucket, name, b"of a newer job"))
        with pytest.raises(OutputError, match=f"{name}: not written, since another job has written this file"):
            shard_writer.write(task, job.job, job.encoder)
        assert gcs.read(bucket, name) == b"of a newer job"

    def test_a_late_worker_deletes_nothing_newer(self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed) -> None:
        task = first_task(job)
        name = f"out/rejected/{task.split}-{task.index:05d}.jsonl"
        delayed(".offsets", lambda: gcs.write(bucket, name, b"of a newer job"))
        shard_writer.write(task, job.job, job.encoder)
        assert gcs.read(bucket, name) == b"of a newer job"

    def test_a_shard_that_was_not_there_at_the_start_is_not_deleted(self, gcs: Gcs, bucket: str, job: OpenJob) -> None:
        shard, before = job.job.shard_name(first_task(job)), gcs.names(bucket)
        paths = shard_files.paths(job.job, shard)
        shard_files.delete(job.job, shard, versions=dict.fromkeys(paths, 0))
        assert gcs.names(bucket) == before
        shard_files.delete(job.job, shard, versions=storage.versions(paths))
        assert len(gcs.names(bucket)) == len(before) - 2

    def test_a_late_worker_of_this_job_is_harmless(self, gcs: Gcs, bucket: str, job: OpenJob, delayed: Delayed) -> None:
        task = first_task(job)
        before = gcs.objects(bucket)
        for name in (job.job.shard_name(task), job.job.receipt_path(task).partition(bucket)[2][1:]):
            for object_name in gcs.names(bucket, name):
                gcs.delete(bucket, object_name)
        delayed(job.job.shard_name(task), lambda: shard_writer.write(task, job.job, job.encoder))
        receipt = shard_writer.write(task, job.job, job.encoder)
        assert gcs.objects(bucket) == before
        assert receipts.parse(storage.read_bytes(job.job.receipt_path(task))) == receipt


def first_task(job: OpenJob) -> ShardTask:
    plan = plan_files.read(job.job, "train")
    assert plan is not None
    return plan_files.task_of(job.job, plan_files.key_of(plan.tasks()[0]))
