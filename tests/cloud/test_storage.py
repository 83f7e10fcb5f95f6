"""Objects on Google Cloud Storage: whole or absent, the requests sent, and the final content.

A proxy injects faults before the emulator. An answering machine gives answers that the emulator lacks.
"""

import functools
import gc
import random
import traceback
from collections.abc import Iterator
from typing import Any

import google.auth
import pytest
import requests
from google.api_core.exceptions import NotFound
from google.auth.exceptions import DefaultCredentialsError

from pipelines.prepare import storage
from tests.cloud import proxy
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Answer, Faults, Proxy, refusal, through
from tests.support import seams
from tfrecord_io.errors import ConfigError, OutputError

# The service keeps whole units of 256 KiB of an upload that was cut off: of a block, none to two.
BLOCK_BYTES = 3 << 18
EDGES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 7]


@pytest.fixture(autouse=True)
def _small_and_quick(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, block_bytes=BLOCK_BYTES)


def content_of(num_bytes: int) -> bytes:
    return random.Random(num_bytes).randbytes(num_bytes)


def pieces(content: bytes, *, size: int = 300_000) -> Iterator[bytes]:
    yield from (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("num_bytes", EDGES)
def test_what_is_written_is_read(gcs: Gcs, bucket: str, num_bytes: int) -> None:
    content = content_of(num_bytes)
    path = f"gs://{bucket}/deep/file"
    storage.write_atomic(path, pieces(content))
    assert gcs.objects(bucket) == {"deep/file": content}
    assert storage.read_bytes(path) == content
    assert storage.size(path) == num_bytes
    with storage.read_stream(path) as stream:
        assert stream.read(10) + stream.read() == content


def test_reading_takes_the_proxy_that_the_environment_names(machine: Proxy) -> None:
    machine.answer = lambda number, method, path: Answer(content=b"through the proxy")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", "http://storage.invalid")
        environment.setenv("HTTP_PROXY", machine.endpoint)
        for name in ("http_proxy", "NO_PROXY", "no_proxy"):
            environment.delenv(name, raising=False)
        fs, inner = storage.file_system("gs://bucket/file")
        assert fs.cat_file(inner) == b"through the proxy"


def test_names_with_any_signs_are_themselves(gcs: Gcs, bucket: str) -> None:
    names = ["a b", "#1", "a*?[x]", "50%", "ü", "a&b=c", "+"]
    for name in names:
        storage.write_bytes(f"gs://{bucket}/folder/{name}", name.encode())
    assert storage.list_names(f"gs://{bucket}/folder") == sorted(names)
    assert storage.read_many([f"gs://{bucket}/folder/{name}" for name in names]) == [name.encode() for name in names]
    for name in names:
        storage.delete(f"gs://{bucket}/folder/{name}")
    assert gcs.names(bucket) == []


def test_a_folder_is_what_its_objects_say(gcs: Gcs, bucket: str) -> None:
    for name in ("out/a", "out/deep/b", "outer"):
        gcs.write(bucket, name, name.encode())
    root = f"gs://{bucket}/out"
    assert storage.list_names(root) == storage.list_names(f"{root}/") == ["a", "deep"]
    assert storage.sizes(root) == {"a": 5}
    assert storage.list_names(f"gs://{bucket}") == ["out", "outer"]
    assert (storage.exists(root), storage.exists(f"{root}/deep"), storage.exists(f"{root}/de")) == (True, True, False)
    assert storage.size(f"{root}/none") is None
    assert storage.list_names(f"{root}/none") == []
    assert storage.sizes(f"{root}/none") == {}
    storage.delete(root)
    storage.delete(root)
    assert gcs.names(bucket) == ["outer"], "and nothing that only begins like it"


def test_a_bucket_can_be_emptied_and_never_deleted(gcs: Gcs, bucket: str) -> None:
    gcs.write(bucket, "deep/file", b"x")
    for _ in range(2):
        storage.delete(f"gs://{bucket}")
        assert gcs.names(bucket) == [], "which asks the bucket itself"
    assert storage.exists(f"gs://{bucket}")


def test_what_others_do_is_seen_at_once(gcs: Gcs, bucket: str) -> None:
    folder = f"gs://{bucket}/out"
    assert storage.list_names(folder) == []
    gcs.write(bucket, "out/file", b"first")
    assert (storage.list_names(folder), storage.size(f"{folder}/file")) == (["file"], 5)
    gcs.write(bucket, "out/file", b"second")
    assert (storage.sizes(folder), storage.read_bytes(f"{folder}/file")) == ({"file": 6}, b"second")
    gcs.delete(bucket, "out/file")
    assert (storage.list_names(folder), storage.exists(f"{folder}/file"), storage.exists(folder)) == ([], False, False)


@pytest.mark.parametrize("num_bytes", [10, 3 * BLOCK_BYTES])
@pytest.mark.parametrize(
    "error", [ValueError("of the chunks"), NotFound("of the chunks"), OutputError("a", remedy="b")], ids=repr
)
def test_an_error_of_the_chunks_changes_nothing(gcs: Gcs, bucket: str, num_bytes: int, error: Exception) -> None:
    def broken() -> Iterator[bytes]:
        yield from pieces(content_of(num_bytes))
        raise error

    gcs.write(bucket, "before", b"before")
    for name in ("before", "new"):
        with pytest.raises(type(error)) as caught:
            storage.write_atomic(f"gs://{bucket}/{name}", broken())
        assert caught.value is error
    gc.collect()
    assert gcs.objects(bucket) == {"before": b"before"}


@pytest.mark.slow
def test_small_objects_and_listings_cost_one_request(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with through(gcs, Faults(), monkeypatch) as running:
        for number in range(10):
            storage.write_bytes(f"gs://{bucket}/out/{number}", b"x")
        assert len(running.requests) == 10
        assert len(storage.sizes(f"gs://{bucket}/out")) == 10
        assert len(running.requests) == 11
        storage.read_many([f"gs://{bucket}/out/{number}" for number in range(10)])
        assert len(running.requests) == 21
        storage.versions([f"gs://{bucket}/out/{number}" for number in range(5, 15)])
        assert len(running.requests) == 31


def test_faults_change_no_byte(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(unavailable=0.2, cut_uploads=0.2, lost_answers=0.2, cut_downloads=0.2)
    with through(gcs, faults, monkeypatch) as running:
        for num_bytes in EDGES:
            path = f"gs://{bucket}/{num_bytes}"
            storage.write_atomic(path, pieces(content_of(num_bytes)))
            with storage.read_stream(path) as stream:
                assert stream.read() == content_of(num_bytes)
            assert storage.read_bytes(path) == content_of(num_bytes)
        assert storage.sizes(f"gs://{bucket}") == {str(num_bytes): num_bytes for num_bytes in EDGES}
        assert all(running.counts[fault] for fault in ("unavailable", "cut_uploads", "lost_answers", "cut_downloads"))
    assert gcs.objects(bucket) == {str(num_bytes): content_of(num_bytes) for num_bytes in EDGES}


@pytest.mark.parametrize("answer", [refusal(410), refusal(404), Answer(status=308)])
def test_an_upload_that_is_dropped_is_an_error_without_session(bucket: str, machine: Proxy, answer: Answer) -> None:
    machine.answer = lambda number, method, path: answer if method == "PUT" else None
    with pytest.raises(OutputError, match="the upload was interrupted: ") as caught:
        storage.write_bytes(f"gs://{bucket}/file", content_of(2 * BLOCK_BYTES))
    assert "run the same command again" in caught.value.remedy
    assert "upload_id" not in "".join(traceback.format_exception(caught.value))
    assert storage.list_names(f"gs://{bucket}") == []


@pytest.mark.parametrize("stall_at", [2, 4])
@pytest.mark.slow
def test_a_stalled_connection_is_renewed(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch, stall_at: int) -> None:
    seams.put(monkeypatch, silence_seconds=0.3)
    content = content_of(2 * BLOCK_BYTES + 1)
    with through(gcs, Faults(stall_at=stall_at, stall_seconds=2), monkeypatch) as running:
        storage.write_bytes(f"gs://{bucket}/file", content)
        assert storage.read_bytes(f"gs://{bucket}/file") == content
        assert running.counts["stalls"] == 1


def change_on_the_way(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Flips a bit of each request's body where that holds `content`, or is a part of it."""
    request = requests.Session.request

    def changed(session: Any, method: str, url: str, **options: Any) -> Any:
        body = options.get("data")
        if body and (method == "PUT" or "uploadType=multipart" in url):
            place = body.find(content[5:9]) if len(content) == 10 else 7
            options["data"] = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        return request(session, method, url, **options)

    monkeypatch.setattr(requests.Session, "request", changed)


@pytest.mark.parametrize("num_bytes", [10, 2 * BLOCK_BYTES])
def test_changes_on_the_way_are_found(gcs: Gcs, bucket: str, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    change_on_the_way(monkeypatch, content_of(num_bytes))
    with pytest.raises(OutputError, match="the upload was interrupted: "):
        storage.write_bytes(f"gs://{bucket}/file", content_of(num_bytes))
    assert gcs.names(bucket) == []


def test_an_object_replaced_while_read_gives_no_mixture(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[object] = []
    fs = storage.file_system(f"gs://{bucket}/x")[0]
    original = fs.cat_file

    def cat_file(*arguments: Any, **options: Any) -> Any:
        generations.append(options["generation"])
        return original(*arguments, **options)

    monkeypatch.setattr(fs, "cat_file", cat_file)
    seams.put(monkeypatch, patience_seconds=0.1)
    gcs.write(bucket, "file", content_of(2 * BLOCK_BYTES))
    with storage.read_stream(f"gs://{bucket}/file") as stream:
        stream.read(1)
        gcs.write(bucket, "file", b"short")
        with pytest.raises(OutputError, match="cannot be read"):
            stream.read()
    assert len(generations) > 1
    assert len(set(generations)) == 1, "each range is asked of the version that was opened"


def test_an_object_that_is_deleted_while_it_is_read_is_an_error(bucket: str, machine: Proxy) -> None:
    """By default a bucket keeps no older versions."""
    storage.write_bytes(f"gs://{bucket}/file", content_of(2 * BLOCK_BYTES))
    with storage.read_stream(f"gs://{bucket}/file") as stream:
        stream.read(1)
        machine.answer = lambda number, method, path: refusal(404)
        with pytest.raises(OutputError, match="deleted or replaced while it was read"):
            stream.read()


@pytest.mark.slow
def test_unknown_certificates_fail(gcs: Gcs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with proxy.running(gcs.endpoint, tls=True) as unknown:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", unknown.endpoint)
        for use in (storage.list_names, lambda path: storage.write_bytes(path, b"x")):
            with pytest.raises(OutputError, match="CERTIFICATE_VERIFY_FAILED"):
                use("gs://bucket/file")
    assert "trying again" not in caplog.text


def test_no_bucket_is_said_whatever_is_asked_of_it(gcs: Gcs, bucket: str) -> None:
    path = f"gs://{bucket}-not-there/out"
    uses: list[Any] = [storage.read_bytes, storage.list_names, storage.sizes, storage.size, storage.exists]
    contents = (b"x", content_of(2 * BLOCK_BYTES))
    uses += [functools.partial(storage.write_bytes, content=content) for content in contents]
    for use in uses:
        with pytest.raises(OutputError, match=f"there is no bucket gs://{bucket}-not-there") as caught:
            use(path)
        assert f"gcloud storage buckets create gs://{bucket}-not-there --location=" in caught.value.remedy
    storage.delete(path)


def test_an_outage_longer_than_that_of_the_library_is_sat_out(machine: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    machine.answer = lambda number, method, path: refusal(503) if number <= 20 else Answer(content=b"content")
    assert storage.read_bytes("gs://bucket/file") == b"content"
    assert len(machine.requests) == 21
    assert "trying again" in caplog.text


def test_an_outage_without_an_end_is_an_error(machine: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, patience_seconds=0.2)
    machine.answer = lambda number, method, path: refusal(429)
    write = functools.partial(storage.write_bytes, content=content_of(BLOCK_BYTES + 1))
    for use in (storage.list_names, storage.delete, write):
        with pytest.raises(OutputError, match=r"answers with status 429.*; .*run the same command again"):
            use("gs://bucket/file")


def test_a_connection_that_nobody_takes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, patience_seconds=0.2)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(OutputError, match=r"gs://bucket/file: cannot be read: no connection .*127\.0\.0\.1:9"):
        storage.read_bytes("gs://bucket/file")


def test_who_pays_is_what_fsspec_was_told(machine: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf

    monkeypatch.setitem(conf, "gs", {"requester_pays": "my-project"})
    assert storage.file_system("gs://bucket/file")[0].requester_pays == "my-project"
    paths: list[str] = []

    def answer(number: int, method: str, path: str) -> Answer:
        paths.append(path)
        return refusal(404)

    machine.answer = answer
    storage.delete("gs://bucket/file")
    assert storage.versions(["gs://bucket/file"]) == {"gs://bucket/file": 0}
    assert len(paths) == 2
    assert all("userProject=my-project" in path for path in paths)


no_default = seams.raising(DefaultCredentialsError("File /nowhere/key.json was not found."))


def test_without_credentials_requests_are_anonymous(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.auth, "default", no_default)
    fs = storage.file_system("gs://bucket/file")[0]
    assert fs.credentials.token == "anon"
    assert fs.credentials.credentials is None


def test_credentials_that_are_named_and_not_there_are_an_error(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    monkeypatch.setattr(google.auth, "default", no_default)
    with pytest.raises(ConfigError, match=r"CREDENTIALS=/nowhere/key\.json: cannot be used as credentials"):
        storage.list_names("gs://bucket")


def test_credentials_are_looked_for_again_when_they_were_missing(machine: Proxy) -> None:
    """A VM's metadata server may fail for a moment; a worker must not stay anonymous because of that."""
    message = "Anonymous caller does not have storage.objects.get access"
    machine.answer = lambda number, method, path: refusal(401, message)
    before = storage.file_system("gs://bucket/file")[0]
    with pytest.raises(OutputError):
        storage.read_bytes("gs://bucket/file")
    assert storage.file_system("gs://bucket/file")[0] is not before
