"""The emulator and the proxy themselves: that they go when they should, and keep what they are given."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from typing import Any

import fsspec
import pytest

from tests import building
from tests.cloud import emulator, proxy
from tests.cloud.emulator import Gcs
from tests.cloud.faults import Faults, Script

CONTENTS = [b"", b"\r", b"\n", b"a\r\nb\r", b"\r\n\r\n--", bytes(range(256)) * 40 + b"\r"]


@pytest.mark.parametrize("content", CONTENTS)
def test_an_object_is_what_was_uploaded(gcs: Gcs, content: bytes) -> None:
    bucket = gcs.bucket()
    fsspec.filesystem("gs").pipe_file(f"{bucket}/folder/ours", content)
    gcs.write(bucket, "folder/a name", content)
    assert gcs.objects(bucket, "folder/") == {"ours": content, "a name": content}


def test_an_upload_that_breaks_off_makes_no_object(gcs: Gcs) -> None:
    bucket = gcs.bucket()
    connection = http.client.HTTPConnection(gcs.endpoint.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=half")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"x" * 500)
    connection.close()
    assert gcs.names(bucket) == []


@pytest.mark.parametrize("kind", ["multipart", "resumable"])
def test_only_the_generation_that_was_named_is_replaced(gcs: Gcs, kind: str) -> None:
    fs, bucket = fsspec.filesystem("gs"), gcs.bucket()
    path, url = f"{bucket}/file", fs.base.replace("/storage/v1/", "/upload/storage/v1/") + f"b/{bucket}/o"

    def upload(content: bytes, *, replacing: int) -> None:
        options: dict[str, Any] = {"uploadType": kind, "ifGenerationMatch": replacing}
        if kind == "resumable":
            headers, _ = fs.call("POST", url, json={"name": "file"}, **options)
            fs.call("PUT", headers["Location"], data=content)
        else:
            kind_of = b"Content-Type: application/json"
            parts = b'--x\n%s\n\n{"name": "file"}\n--x\n%s\n\n%s\n--x--' % (kind_of, kind_of, content)
            fs.call("POST", url, data=parts, headers={"Content-Type": "multipart/related; boundary=x"}, **options)

    with pytest.raises(FileExistsError):
        upload(b"of none", replacing=1)
    upload(b"first", replacing=0)
    with pytest.raises(FileExistsError):
        upload(b"second", replacing=0)
    assert fs.cat_file(path) == b"first"
    upload(b"third", replacing=int(fs.info(path)["generation"]))
    assert fs.cat_file(path) == b"third"


def test_a_part_that_is_sent_again_changes_nothing(gcs: Gcs) -> None:
    fs, bucket = fsspec.filesystem("gs"), gcs.bucket()
    url = fs.base.replace("/storage/v1/", "/upload/storage/v1/") + f"b/{bucket}/o"
    headers, _ = fs.call("POST", url, json={"name": "file"}, uploadType="resumable", ifGenerationMatch=0)

    def send(span: str, content: bytes) -> None:
        fs.call("PUT", headers["Location"], headers={"Content-Range": f"bytes {span}"}, data=content)

    send("0-3/*", b"abcd")
    send("0-3/*", b"abcd")
    send("2-5/*", b"cdef")
    for _ in range(2):
        send("4-7/8", b"efgh")
    assert gcs.objects(bucket) == {"file": b"abcdefgh"}


@pytest.mark.slow
def test_the_emulator_ends_with_its_context() -> None:
    with contextlib.suppress(ZeroDivisionError), emulator.running() as gcs:
        gcs.bucket()
        raise ZeroDivisionError
    assert not is_there(gcs)


@pytest.mark.slow
def test_the_emulator_ends_with_a_test_run_that_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from tests.cloud import emulator\n"
        "with emulator.running() as gcs:\n"
        "    print(gcs.endpoint, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    killed = subprocess.run(command, env=building.environment(), capture_output=True, text=True, timeout=60)
    orphan = Gcs(endpoint=killed.stdout.strip())
    give_up = time.monotonic() + 60
    while is_there(orphan):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def is_there(gcs: Gcs) -> bool:
    try:
        gcs.bucket()
    except OSError:
        return False
    return True


def test_a_server_that_does_not_start_says_why() -> None:
    absent = emulator.process("tests.cloud.absent")
    with pytest.raises(RuntimeError, match=r"No module named tests\.cloud\.absent"), absent:
        pass


def refusals(faults: Faults) -> list[int]:
    script = Script(faults)
    return [script.refusal("host") for _ in range(40)]


class TestFaults:
    def test_of_every_so_many_requests_one_is_hit(self) -> None:
        statuses = refusals(Faults(unavailable=0.25))
        assert all(statuses[start : start + 4].count(503) == 1 for start in range(0, 40, 4))

    def test_the_seed_decides_which(self) -> None:
        once, again, other = (refusals(Faults(seed=seed, unavailable=0.25)) for seed in (1, 1, 2))
        assert once == again != other


class TestProxy:
    @pytest.mark.slow
    def test_a_body_may_come_in_chunks_and_with_its_length(self, gcs: Gcs) -> None:
        bucket = gcs.bucket()
        with proxy.running(gcs.endpoint) as plain:
            connection = http.client.HTTPConnection(plain.endpoint.removeprefix("http://"), timeout=10)
            connection.putrequest("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name=both")
            connection.putheader("Content-Length", "8")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders(b"5\r\nfirst\r\n3\r\nend\r\n0\r\n\r\n")
            assert connection.getresponse().status == 200
            connection.close()
        assert gcs.read(bucket, "both") == b"firstend"

    @pytest.mark.slow
    def test_with_tls_it_is_google_for_who_trusts_its_authority(self, gcs: Gcs) -> None:
        with proxy.running(gcs.endpoint, tls=True) as google:
            assert google.counts()["requests"] == 0
