"""The doctor reports missing permissions of a bucket, one after another, each with the command that grants it."""

import json
from typing import Any

import google.auth
import pytest
from google.auth.exceptions import DefaultCredentialsError
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials

from pipelines.prepare.launch import doctor
from pipelines.prepare.storage import gcs as connection
from pipelines.prepare.storage.gcs_account import Check
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Answer, Proxy, refusal
from tests.support import seams

ACCOUNT = "builder@project.iam.gserviceaccount.com"
# The permission that each operation needs.
OBJECTS = {"write": "create", "read": "get", "list": "list", "delete": "delete"}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, patience_seconds=0.1)


def checks_of(output: str, **options: Any) -> dict[str, Check]:
    return {check.name: check for check in doctor.diagnose(output, **options)}


def permission_of(method: str, path: str) -> str:
    path, _, query = path.partition("?")
    if "/upload/" in path:
        return "storage.objects.create"
    if method == "DELETE":
        return "storage.objects.delete"
    if path.endswith("/o"):
        return "storage.objects.list"
    return "storage.objects.get" if "/o/" in path or "alt=media" in query else "storage.buckets.get"


def without(*missing: str) -> Any:
    def answer(number: int, method: str, path: str) -> Answer | None:
        permission = permission_of(method, path)
        message = f"{ACCOUNT} does not have {permission} access to the Google Cloud Storage object."
        return refusal(403, message) if permission in missing else None

    return answer


def test_a_good_bucket_passes_and_stays_as_it_was(gcs: Gcs, bucket: str) -> None:
    checks = checks_of(f"gs://{bucket}/out")
    assert [checks[name].ok for name in ["credentials", "bucket", *OBJECTS]] == [True] * 6
    assert "emulator" in checks["credentials"].found
    assert gcs.names(bucket) == []


@pytest.mark.parametrize("operation", ["write", "read", "delete"])
def test_a_missing_permission_is_named_with_a_command_for_it(bucket: str, machine: Proxy, operation: str) -> None:
    missing = f"storage.objects.{OBJECTS[operation]}"
    machine.answer = without(missing)
    checks = checks_of(f"gs://{bucket}/out")
    assert [name for name, check in checks.items() if check.ok is False] == [operation]
    role = "storage.objectViewer" if operation == "read" else "storage.objectAdmin"
    command = f"gcloud storage buckets add-iam-policy-binding gs://{bucket}"
    assert checks[operation].remedy == f"{command} --member=serviceAccount:{ACCOUNT} --role=roles/{role}"
    assert missing in checks[operation].found


def test_who_may_not_look_at_the_bucket_may_use_it(bucket: str, machine: Proxy) -> None:
    machine.answer = without("storage.buckets.get")
    checks = checks_of(f"gs://{bucket}/out", region="us-central1")
    assert checks["bucket"].ok is None
    assert "--role=roles/storage.legacyBucketReader" in checks["bucket"].remedy
    assert all(checks[name].ok for name in OBJECTS)


def test_no_bucket_ends_the_visit(bucket: str) -> None:
    checks = checks_of(f"gs://{bucket}-none/out")
    assert list(checks) == ["credentials", "bucket"]
    assert checks["bucket"].ok is False
    assert f"gcloud storage buckets create gs://{bucket}-none" in checks["bucket"].remedy


def test_a_service_that_does_not_answer_ends_the_visit(bucket: str, machine: Proxy) -> None:
    machine.answer = lambda number, method, path: refusal(503)
    checks = checks_of(f"gs://{bucket}/out")
    assert list(checks) == ["credentials", "bucket"]
    assert "status 503" in checks["bucket"].found


def telling(**told: Any) -> Any:
    """The answer of a service that tells so much of the bucket."""

    def answer(number: int, method: str, path: str) -> Answer | None:
        content = told.get(permission_of(method, path).rpartition(".")[2])
        return Answer(content=json.dumps(content).encode()) if content else None

    return answer


READ = {
    "region": {"location": "US-CENTRAL1", "locationType": "region"},
    "continent": {"location": "US", "locationType": "multi-region"},
    "two": {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-EAST5"]}},
}


@pytest.mark.parametrize(
    ("told", "region", "ok", "remedy"),
    [
        ("region", "us-central1", True, ""),
        ("region", "us-central1-b", True, ""),
        ("region", "europe-west4", False, "--location=europe-west4"),
        ("continent", "us-central1", True, "in a bucket in us-central1"),
        ("continent", "europe-west4-a", False, "--location=europe-west4"),
        ("two", "us-east5", True, ""),
    ],
)
def test_the_bucket_is_near_the_tpu(bucket: str, machine: Proxy, told: str, region: str, ok: bool, remedy: str) -> None:
    machine.answer = telling(get=READ[told])
    check = checks_of(f"gs://{bucket}/out", region=region)["region"]
    assert check.ok is ok
    assert remedy in check.remedy
    assert bool(remedy) == bool(check.remedy)


def with_default(monkeypatch: pytest.MonkeyPatch, credentials: Any) -> Check:
    """Return the doctor's output for these credentials. Sends nothing to Google."""

    def default(**_: object) -> tuple[Any, None]:
        if credentials is None:
            raise DefaultCredentialsError("none")
        return credentials, None

    monkeypatch.setattr(google.auth, "default", default)
    # The check of credentials is all that matters here.
    monkeypatch.setattr(connection, "bucket", seams.raising(ConnectionError()))
    return checks_of("gs://bucket/out")["credentials"]


@pytest.mark.parametrize(
    ("credentials", "ok", "words"),
    [
        (
            Credentials("hush", refresh_token="hush", account="me@example.com"),
            True,
            "oauth2.credentials me@example.com",
        ),
        (service_account.Credentials(None, ACCOUNT, "https://token.example"), True, f"service_account {ACCOUNT}"),
        (None, False, "only public objects can be read"),
    ],
    ids=["user", "key file", "none"],
)
def test_who_we_are_is_said_and_no_secret(
    outside: None, monkeypatch: pytest.MonkeyPatch, credentials: Any, ok: bool, words: str
) -> None:
    check = with_default(monkeypatch, credentials)
    assert check.ok is ok
    assert words in check.found
    assert ok or "gcloud auth application-default login" in check.remedy
    assert "hush" not in f"{check}"


def test_a_key_file_that_is_not_there_is_found(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    check = with_default(monkeypatch, None)
    assert check.ok is False
    assert "GOOGLE_APPLICATION_CREDENTIALS=/nowhere/key.json" in check.found
