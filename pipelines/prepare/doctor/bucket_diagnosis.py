"""Checks of a bucket: credentials, location, permissions on objects, and whether a TPU can read them.

Each permission is tried by a request that needs it, since an account's roles are not enough: organizations have
policies, and objects may be held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.prepare import storage
from pipelines.prepare.storage import gcs, storage_errors
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.shown import without_secrets

# Prefix of the objects that checks make. Listings skip such objects, and builds delete them if a check was killed.
PROBE = f"{storage.PARTIAL}doctor-"

_CONTINENTS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
_READERS = ("objectViewer", "objectUser", "objectAdmin", "admin", "legacyObjectReader")
_PATIENCE_SECONDS = 30.0
_KINDS = {
    "google.oauth2.credentials": "application default credentials of a user",
    "google.oauth2.service_account": "key file of a service account",
    "google.auth.compute_engine": "metadata server of this machine",
    "google.auth.impersonated_credentials": "impersonated service account",
    "google.auth.external_account": "workload identity federation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check. `ok` is None if it cannot be known, or does not matter; `found` is the result in words.

    Secrets are removed from `found` and `remedy`.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for field in ("found", "remedy"):
            object.__setattr__(self, field, without_secrets(getattr(self, field)))


class StopChecksError(Exception):
    """Raised where all further checks would fail for the same reason."""


def until_stopped(checks: Iterator[Check]) -> Iterator[Check]:
    """Yield checks until StopChecksError, then one check that says why the others were not made."""
    try:
        yield from checks
    except StopChecksError as error:
        yield Check(name="all else", ok=None, found=f"not tried: {error}")


def attempt(name: str, action: Callable[[], Any] | None, *, path: str) -> Check:
    """Check whether `action` succeeds; None for an action that has no object to try it on."""
    if action is None:
        return Check(name=name, ok=None, found="not tried: there is no object to try it on")
    try:
        with storage_errors.as_output_error(path):
            action()
    except OutputError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    return Check(name=name, ok=True, found="allowed")


def checks(output: str, *, region: str | None) -> Iterator[Check]:
    """Check the gs:// address `output`, for a TPU in `region`. Raises: StopChecksError."""
    bucket = gcs.inner_path(output).partition("/")[0]
    credentials = _credentials_check()
    yield credentials
    if not credentials.ok and credentials.ok is not None:
        raise StopChecksError("without credentials nothing can be written")
    yield from _location_checks(output, bucket, region=region)
    yield from _object_checks(output)
    yield _tpu_check(output, bucket)


def _credentials_check() -> Check:
    name = "credentials"
    if host := os.environ.get(gcs.EMULATOR):
        return Check(name=name, ok=True, found=f"none needed: {gcs.EMULATOR} names an emulator at {host}")
    if "token" in gcs.configured():
        return Check(name=name, ok=None, found="a token set for fsspec, which overrides all other credentials")
    try:
        found = gcs.find_credentials()
    except PrepError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    if found is None:
        remedy = storage_errors.login_remedy()
        return Check(name=name, ok=False, found="none: only public objects can be read", remedy=remedy)
    problem = _renewal_problem(found)
    kind = next((words for module, words in _KINDS.items() if type(found).__module__.startswith(module)), "")
    account = next((text for each in ("service_account_email", "account") if (text := getattr(found, each, None))), "")
    who = ": ".join(filter(None, (kind or f"{type(found).__module__}.{type(found).__name__}", account)))
    if problem:
        remedy = storage_errors.login_remedy()
        return Check(name=name, ok=False, found=f"{who}; they could not be renewed ({problem})", remedy=remedy)
    return Check(name=name, ok=True, found=who)


def _renewal_problem(credentials: Any) -> str:
    """Renew the credentials; return why that fails, or an empty string. A machine's then name their account."""
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials.refresh(Request())
    except GoogleAuthError as error:
        return without_secrets(str(error.args[0] if error.args else error))
    return ""


def _location_checks(output: str, bucket: str, *, region: str | None) -> Iterator[Check]:
    try:
        with storage_errors.as_output_error(f"gs://{bucket}"), gcs.bucket(output) as (described, _):
            described.reload(**_request())
    except OutputError as error:
        if error.__context__ is None or storage_errors.status_of(error.__context__) != 403:
            yield Check(name="bucket", ok=False, found=error.cause, remedy=error.remedy)
            raise StopChecksError(error.cause) from error
        # An account that can read and write objects need not be able to read the bucket's metadata.
        remedy = error.remedy.replace("storage.objectAdmin", "storage.legacyBucketReader")
        yield Check(name="bucket", ok=None, found=f"its metadata cannot be read: {error.cause}", remedy=remedy)
        return
    kind = described.location_type or "region"
    yield Check(name="bucket", ok=True, found=f"{described.location}, {kind}, {described.storage_class or ''}")
    if seconds := described.retention_period:
        yield Check(
            name="retention",
            ok=False,
            found=f"objects cannot be replaced or deleted for {seconds} seconds",
            remedy=f"choose another bucket, or: gcloud storage buckets update gs://{bucket} --clear-retention-period",
        )
    if region is not None:
        yield _region_check(described, bucket, region=re.sub(r"-[a-z]$", "", region.lower()))


def _region_check(described: Any, bucket: str, *, region: str) -> Check:
    location = str(described.location or "")
    if region in [location.lower(), *(str(each).lower() for each in described.data_locations or ())]:
        return Check(name="region", ok=True, found=f"the bucket is in {region}")
    if (prefix := _CONTINENTS.get(location.upper())) and region.startswith(prefix):
        return Check(
            name="region",
            ok=True,
            found=f"the bucket is in several regions of {location}, which may not include {region}",
            remedy=f"for the highest speed and no cost of traffic, keep the dataset in a bucket in {region}",
        )
    return Check(
        name="region",
        ok=False,
        found=f"the bucket is in {location}, the TPU in {region}: every epoch is read across regions, at a cost",
        remedy=f"gcloud storage buckets create gs://{bucket}-{region} --location={region}",
    )


def _object_checks(output: str) -> Iterator[Check]:
    """Check each permission by the one request that needs it."""
    probe = storage.join(output, PROBE + uuid.uuid4().hex)
    created = attempt("storage.objects.create", lambda: storage.write_bytes(probe, b"probe"), path=probe)
    yield created
    there: list[str] = []

    def listed() -> None:
        prefix = key if created.ok else None
        there.extend(blob.name for blob in bucket.list_blobs(prefix=prefix, max_results=1, **_request()))

    def got() -> None:
        bucket.blob(key if created.ok else there[0]).reload(**_request())

    def deleted() -> None:
        bucket.delete_blob(key, **_request())

    with gcs.bucket(probe) as (bucket, key):
        listing = attempt("storage.objects.list", listed, path=output)
        yield attempt("storage.objects.get", got if created.ok or there else None, path=probe)
        yield listing
        yield attempt("storage.objects.delete", deleted if created.ok else None, path=probe)


def _tpu_check(output: str, bucket: str) -> Check:
    """Check a TPU Node's access; it reads as its project's Cloud TPU service account, a TPU VM as the VM's account."""
    name = "TPU service account"
    number = "PROJECT_NUMBER"
    with contextlib.suppress(Exception), gcs.bucket(output) as (described, _):
        described.reload(**_request())
        number = described.project_number
    account = f"service-{number}@cloud-tpu.iam.gserviceaccount.com"
    remedy = storage_errors.grant(bucket, account, role="storage.objectViewer")
    try:
        with gcs.bucket(output) as (described, _):
            policy = described.get_iam_policy(requested_policy_version=3, **_request())
    except Exception:
        return Check(name=name, ok=None, found="the bucket's permissions cannot be read", remedy=remedy)
    members = {
        member
        for binding in policy.bindings
        if str(binding.get("role", "")).removeprefix("roles/storage.") in _READERS
        for member in binding.get("members", ())
    }
    if members & {f"serviceAccount:{account}", "allUsers", "allAuthenticatedUsers"}:
        return Check(name=name, ok=True, found=f"{account} can read")
    return Check(
        name=name,
        ok=None,
        found=f"{account} is not among the bucket's readers; a TPU Node needs it, a TPU VM reads as its VM",
        remedy=remedy,
    )


def _request() -> dict[str, Any]:
    """Limits of a request: who asks for a diagnosis does not want to wait for an outage to end."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": gcs.TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_PATIENCE_SECONDS)}
