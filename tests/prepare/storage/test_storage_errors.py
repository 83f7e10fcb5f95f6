"""Errors of storage services are distinguished, each with its remedy, and none shows a secret."""

import errno
import io
import json
import os
import ssl
import traceback

import aiohttp
import pytest
import requests
from gcsfs.retry import HttpError, validate_response
from google.api_core.exceptions import from_http_response
from google.auth.exceptions import RefreshError, TransportError

from pipelines.prepare.storage import storage_errors
from tests.support import seams
from tfrecord_io.errors import OutputError, SourceError

ACCOUNT = "trainer@project.iam.gserviceaccount.com"
# As Google Cloud Storage words them.
NOT_ALLOWED = (
    f"{ACCOUNT} does not have storage.objects.create access to the Google Cloud Storage object. Permission "
    "'storage.objects.create' denied on resource (or it may not exist)."
)
ANONYMOUS = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
REQUESTER_PAYS = "Bucket is a requester pays bucket but no user project provided."
NO_SCOPE = "Request had insufficient authentication scopes."
NO_BILLING = "The project to be billed is associated with an absent billing account."


def answered(status: int, message: str = "") -> Exception:
    """What gcsfs makes of an answer of the service."""
    content = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'
    try:
        validate_response(status, content, "b/bucket/o")
    except Exception as error:
        return error
    raise AssertionError("no error")


def answered_to_google(status: int, message: str = "") -> Exception:
    """What google-cloud-storage makes of an answer of the service."""
    response = requests.Response()
    response.status_code = status
    response.raw = io.BytesIO(json.dumps({"error": {"code": status, "message": message}}).encode())
    response.request = requests.Request("GET", "https://storage.googleapis.com/storage/v1/b/x?projection=n").prepare()
    return from_http_response(response)


def untrusted() -> Exception:
    wrapped = requests.exceptions.SSLError("HTTPSConnectionPool(host='x', port=443): Max retries exceeded")
    wrapped.__context__ = ssl.SSLCertVerificationError()
    return wrapped


def explained(error: Exception, path: str = "gs://bucket/out/file") -> OutputError:
    with pytest.raises(OutputError) as caught, storage_errors.as_output_error(path):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("status", "message", "cause", "remedy"),
    [
        (404, "The specified bucket does not exist.", "no bucket gs://bucket", "gcloud storage buckets create gs://bu"),
        (401, ANONYMOUS, "no valid credentials", "gcloud auth application-default login"),
        (401, "Invalid Credentials", "no valid credentials", "gcloud auth application-default login"),
        (403, NO_SCOPE, "insufficient authentication scopes", "the scope cloud-platform"),
        (403, NO_BILLING, "absent billing account", "gcloud billing projects link"),
        (400, REQUESTER_PAYS, "requester pays bucket", "FSSPEC_GS_REQUESTER_PAYS=PROJECT"),
        (400, "User project specified in the request is invalid.", "User project", "existing project"),
        (403, "Request is prohibited by organization's policy.", "organization's policy", "add-iam-policy-binding"),
        (412, "", "gs://bucket/out/file", "run the same command again"),
        (429, "Slow down.", "status 429", "run the same command again"),
        (503, "Backend error", "status 503", "run the same command again"),
        (502, "", "status 502", "run the same command again"),
    ],
)
def test_what_the_service_refuses_is_explained(status: int, message: str, cause: str, remedy: str) -> None:
    for client in (answered, answered_to_google):
        error = explained(client(status, message))
        assert cause in error.cause
        assert remedy in error.remedy


def test_a_person_is_no_service_account_and_readers_need_less() -> None:
    message = NOT_ALLOWED.replace(ACCOUNT, "me@example.com").replace("create", "get")
    with pytest.raises(SourceError) as caught, storage_errors.reading("gs://bucket/data", SourceError):
        raise answered(403, message)
    assert "--member=user:me@example.com --role=roles/storage.objectViewer" in caught.value.remedy


@pytest.mark.parametrize("secret", ["ya29.a0AfH6SM-hush", "upload_id=ABg5hush", "Bearer hush"])
def test_no_message_and_no_traceback_shows_what_grants_access(secret: str) -> None:
    address = f"https://storage.example/upload/b/bucket/o?uploadType=resumable&{secret}"
    for text in (address, f"lost: {secret}"):
        shown = "".join(traceback.format_exception(explained(RuntimeError(text))))
        assert "hush" not in shown
        assert "gs://bucket/out/file" in shown


@pytest.mark.parametrize(
    "error",
    [
        *map(answered, (408, 429, 500, 502, 503)),
        HttpError({"code": "504", "message": ""}),
        ConnectionResetError(),
        TimeoutError(),
        TransportError("the token could not be renewed"),
        OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH)),
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientPayloadError("Response payload is not completed"),
        aiohttp.SocketTimeoutError(),
        *map(answered_to_google, (429, 503)),
        requests.ConnectionError("lost"),
        RefreshError("the server of tokens is busy", retryable=True),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, first_retry_seconds=0.001)
    attempts: list[int] = []

    def attempt() -> str:
        attempts.append(1)
        if len(attempts) < 4:
            raise error
        return "done"

    assert storage_errors.retry_transient(attempt, path="gs://bucket/file") == "done"
    assert len(attempts) == 4


@pytest.mark.parametrize(
    "error",
    [
        *map(answered, (400, 401, 403, 404, 412), ("Bad", ANONYMOUS, NOT_ALLOWED, "", "")),
        OSError(errno.EIO, os.strerror(errno.EIO)),
        PermissionError(),
        ssl.SSLCertVerificationError(),
        untrusted(),
        *map(answered_to_google, (401, 404, 412)),
        RefreshError("Reauthentication is needed."),
        ValueError("wrong"),
    ],
    ids=repr,
)
def test_what_stays_is_not_tried_again(error: Exception) -> None:
    attempts: list[int] = []

    def attempt() -> None:
        attempts.append(1)
        raise error

    with pytest.raises(type(error)):
        storage_errors.retry_transient(attempt, path="gs://bucket/file")
    assert len(attempts) == 1


def test_trying_again_has_an_end_and_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    seams.put(monkeypatch, first_retry_seconds=0.01, patience_seconds=0.1)

    def attempt() -> None:
        raise answered(503, "upload_id=hush")

    with pytest.raises(HttpError):
        storage_errors.retry_transient(attempt, path="gs://bucket/file")
    assert "gs://bucket/file: " in caplog.text
    assert "trying again" in caplog.text
    assert "hush" not in caplog.text
