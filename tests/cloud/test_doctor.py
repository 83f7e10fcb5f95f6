"""The doctor tells what is missing at a bucket, one permission after another, with the command that gives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import google.auth
import pytest
from google.auth import compute_engine
from google.auth.exceptions import DefaultCredentialsError, RefreshError
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials

from pipelines.prepare.doctor import bucket_diagnosis, doctor
from pipelines.prepare.doctor.doctor import Check
from pipelines.prepare.storage import gcs as connection
from tests.cloud.answering import Answer, Machine, answering, refusal
from tests.cloud.disturbed import shorten_pauses
from tests.cloud.emulator import Gcs

ACCOUNT = "builder@project.iam.gserviceaccount.com"
OBJECTS = [f"storage.objects.{verb}" for verb in ("create", "get", "list", "delete")]


@pytest.fixture
def bucket(gcs: Gcs) -> str:
    return gcs.bucket()


@pytest.fixture
def machine(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    shorten_pauses(monkeypatch, ours=0.01, theirs=0.001)
    monkeypatch.setattr(bucket_diagnosis, "_PATIENCE_SECONDS", 0.1)
    with answering(gcs.endpoint) as answers, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", answers.endpoint)
        yield answers


def found(output: str, **options: Any) -> dict[str, Check]:
    return {check.name: check for check in doctor.diagnose(output, **options)}


def permission_of(method: str, path: str) -> str:
    """The permission that a request needs."""
    path, _, query = path.partition("?")
    if "/upload/" in path:
        return "storage.objects.create"
    if method == "DELETE":
        return "storage.objects.delete"
    if path.endswith("/iam"):
        return "storage.buckets.getIamPolicy"
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
    checks = found(f"gs://{bucket}/out")
    assert [checks[name].ok for name in ["credentials", "bucket", *OBJECTS]] == [True] * 6
    assert "emulator" in checks["credentials"].found
    assert gcs.names(bucket) == []


@pytest.mark.parametrize("missing", OBJECTS)
def test_each_missing_permission_is_named_with_the_command_that_gives_it(
    gcs: Gcs, bucket: str, machine: Machine, missing: str
) -> None:
    gcs.write(bucket, "there", b"already")
    machine.answer = without(missing)
    checks = found(f"gs://{bucket}/out")
    expected = {name: name != missing for name in OBJECTS}
    if missing == "storage.objects.create":
        expected["storage.objects.delete"] = None  # type: ignore[assignment]
    assert {name: checks[name].ok for name in OBJECTS} == expected
    assert checks[missing].remedy == (
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        f"--member=serviceAccount:{ACCOUNT} --role=roles/storage.objectAdmin"
    )
    assert ACCOUNT in checks[missing].found
    assert missing in checks[missing].found


def test_who_may_not_look_at_the_bucket_may_use_it(bucket: str, machine: Machine) -> None:
    machine.answer = without("storage.buckets.get", "storage.buckets.getIamPolicy")
    checks = found(f"gs://{bucket}/out", region="us-central1")
    assert checks["bucket"].ok is None
    assert "--role=roles/storage.legacyBucketReader" in checks["bucket"].remedy
    assert all(checks[name].ok for name in OBJECTS)
    assert checks["TPU service account"].ok is None
    assert "service-PROJECT_NUMBER@cloud-tpu.iam" in checks["TPU service account"].remedy


def test_no_bucket_ends_the_visit(bucket: str) -> None:
    checks = found(f"gs://{bucket}-none/out")
    assert list(checks) == ["credentials", "bucket", "all else"]
    assert checks["bucket"].ok is False
    assert f"gcloud storage buckets create gs://{bucket}-none" in checks["bucket"].remedy


def test_a_service_that_does_not_answer_ends_the_visit(bucket: str, machine: Machine) -> None:
    machine.answer = lambda number, method, path: refusal(503)
    checks = found(f"gs://{bucket}/out")
    assert list(checks) == ["credentials", "bucket", "all else"]
    assert "status 503" in checks["bucket"].found


@pytest.mark.parametrize(
    ("told", "region", "ok", "remedy"),
    [
        ({"location": "US-CENTRAL1", "locationType": "region"}, "us-central1", True, ""),
        ({"location": "US-CENTRAL1", "locationType": "region"}, "us-central1-b", True, ""),
        ({"location": "EUROPE-WEST4", "locationType": "region"}, "us-central1", False, "--location=us-central1"),
        ({"location": "US", "locationType": "multi-region"}, "us-central1", True, "in a bucket in us-central1"),
        ({"location": "US", "locationType": "multi-region"}, "europe-west4-a", False, "--location=europe-west4"),
        (
            {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-EAST5"]}},
            "us-east5",
            True,
            "",
        ),
    ],
)
def test_the_bucket_is_to_be_where_the_tpu_is(
    bucket: str, machine: Machine, told: dict[str, Any], region: str, ok: bool, remedy: str
) -> None:
    machine.answer = lambda number, method, path: (
        Answer(content=json.dumps(told).encode()) if permission_of(method, path) == "storage.buckets.get" else None
    )
    check = found(f"gs://{bucket}/out", region=region)["region"]
    assert check.ok is ok
    assert remedy in check.remedy
    assert bool(remedy) == bool(check.remedy)


def test_objects_that_cannot_be_replaced_are_found(bucket: str, machine: Machine) -> None:
    told = {"location": "US", "retentionPolicy": {"retentionPeriod": "86400"}}
    machine.answer = lambda number, method, path: (
        Answer(content=json.dumps(told).encode()) if permission_of(method, path) == "storage.buckets.get" else None
    )
    check = found(f"gs://{bucket}/out")["retention"]
    assert check.ok is False
    assert "86400 seconds" in check.found


@pytest.mark.parametrize(
    ("role", "member", "ok"),
    [
        ("roles/storage.objectViewer", "serviceAccount:service-7@cloud-tpu.iam.gserviceaccount.com", True),
        ("roles/storage.objectAdmin", "serviceAccount:service-7@cloud-tpu.iam.gserviceaccount.com", True),
        ("roles/storage.objectViewer", "allUsers", True),
        ("roles/storage.objectCreator", "serviceAccount:service-7@cloud-tpu.iam.gserviceaccount.com", None),
        ("roles/storage.objectViewer", "serviceAccount:service-8@cloud-tpu.iam.gserviceaccount.com", None),
    ],
)
def test_whether_a_tpu_may_read_is_looked_up(
    bucket: str, machine: Machine, role: str, member: str, ok: bool | None
) -> None:
    told = {
        "storage.buckets.get": {"location": "US", "projectNumber": "7"},
        "storage.buckets.getIamPolicy": {"bindings": [{"role": role, "members": [member]}]},
    }

    def answer(number: int, method: str, path: str) -> Answer | None:
        content = told.get(permission_of(method, path))
        return Answer(content=json.dumps(content).encode()) if content else None

    machine.answer = answer
    check = found(f"gs://{bucket}/out")["TPU service account"]
    assert check.ok is ok
    if not ok:
        assert check.remedy == (
            f"gcloud storage buckets add-iam-policy-binding gs://{bucket} "
            "--member=serviceAccount:service-7@cloud-tpu.iam.gserviceaccount.com --role=roles/storage.objectViewer"
        )


def test_the_source_in_a_bucket_is_looked_at(gcs: Gcs, bucket: str, machine: Machine) -> None:
    gcs.write(bucket, "data/train.jsonl", b"{}")
    assert found(f"gs://{bucket}/out", dataset=f"gs://{bucket}/data/*.jsonl")["dataset"].ok
    assert found(f"gs://{bucket}/out", dataset=f"gs://{bucket}/data/*.csv")["dataset"].ok is False
    machine.answer = without("storage.objects.get")
    check = found(f"gs://{bucket}/out", dataset=f"gs://{bucket}/data/*.jsonl")["dataset"]
    assert check.ok is False
    assert "--role=roles/storage.objectViewer" in check.remedy


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were no emulator."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    connection.forget()
    yield
    connection.forget()


def unreachable(*_: object, **__: object) -> Any:
    raise ConnectionError


def with_default(monkeypatch: pytest.MonkeyPatch, credentials: Any, *, problem: str = "") -> Check:
    """What the doctor says of these credentials; nothing is sent to Google."""

    def refresh(self: Any, request: object) -> None:
        if problem:
            raise RefreshError(problem)

    def default(**_: object) -> tuple[Any, None]:
        if credentials is None:
            raise DefaultCredentialsError("none")
        return credentials, None

    monkeypatch.setattr(google.auth, "default", default)
    if credentials is not None:
        monkeypatch.setattr(type(credentials), "refresh", refresh)
    # What follows the credentials is not what is asked for here.
    monkeypatch.setattr(connection, "bucket", unreachable)
    return found("gs://bucket/out")["credentials"]


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (
            Credentials("ya29.hush", refresh_token="hush", client_secret="hush", account="me@example.com"),
            "of a user: me@",
        ),
        (
            service_account.Credentials(None, ACCOUNT, "https://token.example"),
            f"key file of a service account: {ACCOUNT}",
        ),
        (compute_engine.Credentials(service_account_email=ACCOUNT), f"metadata server of this machine: {ACCOUNT}"),
    ],
    ids=["user", "key file", "machine"],
)
def test_who_we_are_is_said_and_no_secret(
    outside: None, monkeypatch: pytest.MonkeyPatch, credentials: Any, says: str
) -> None:
    check = with_default(monkeypatch, credentials)
    assert check.ok is True
    assert says in check.found
    assert "hush" not in f"{check}"


def test_credentials_that_have_expired_are_found(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check = with_default(monkeypatch, Credentials("ya29.hush"), problem="Reauthentication is needed. ya29.hush")
    assert check.ok is False
    assert "Reauthentication is needed" in check.found
    assert "gcloud auth application-default login" in check.remedy
    assert "hush" not in f"{check}"


def test_no_credentials_are_found(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check = with_default(monkeypatch, None)
    assert check.ok is False
    assert "GOOGLE_APPLICATION_CREDENTIALS" in check.remedy


def test_a_key_file_that_is_not_there_is_found(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    check = with_default(monkeypatch, None)
    assert check.ok is False
    assert "GOOGLE_APPLICATION_CREDENTIALS=/nowhere/key.json" in check.found
