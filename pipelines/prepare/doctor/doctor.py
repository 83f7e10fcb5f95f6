"""Diagnosis of an output before a build: each operation of a build is tried once, on a small probe object.

    gs://      credentials ─ the bucket, its location ─ create, get, list, delete an object ─ can a TPU read it
    a folder   can it be made, written and synced ─ locks ─ space
    DATASET    can the source's files be listed and read

Each permission of a bucket is tried by a request that needs it, since an account's roles do not decide alone:
organizations have policies, and objects may be held. A check without a certain result has `ok` None: permissions may be
granted where this account cannot look.
"""

import contextlib
import dataclasses
import fcntl
import functools
import os
import platform
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import tfrecord_io
from pipelines.prepare import storage
from pipelines.prepare.process import cores
from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.storage import gcs, storage_errors
from tfrecord_io.errors import OutputError, PrepError
from tfrecord_io.shown import without_secrets

# Least free space: room for a few shards of the default size.
_LEAST_FREE_BYTES = 1 << 30
_CONTINENTS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
_READERS = ("objectViewer", "objectUser", "objectAdmin", "admin", "legacyObjectReader")
_PATIENCE_SECONDS = 30.0
# Those that a fault may depend on, if they are installed.
_PACKAGES = (
    *("apache-beam", "datasets", "fastokens", "fsspec", "gcsfs", "gigatoken", "google-cloud-storage", "jax", "keras"),
    *("keras-hub", "numba", "numpy", "protobuf", "pyarrow", "tensorflow", "tokenizers", "transformers"),
)
_KINDS = {
    "google.oauth2.credentials": "application default credentials of a user",
    "google.oauth2.service_account": "key file of a service account",
    "google.auth.compute_engine": "metadata server of this machine",
    "google.auth.impersonated_credentials": "impersonated service account",
    "google.auth.external_account": "workload identity federation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check. `ok` is None if the result is uncertain or does not matter; `found` describes the result.

    Secrets are removed from `found` and `remedy`.
    """

    name: str
    ok: bool | None
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for field in ("found", "remedy"):
            object.__setattr__(self, field, without_secrets(getattr(self, field)))


class _StopChecksError(Exception):
    """Signal that all further checks would fail for the same reason."""


def diagnose(output: str, *, region: str | None = None, dataset: str | None = None) -> list[Check]:
    """Check `output`, also for a TPU in `region` (or zone), and the files of `dataset`. Raises: ConfigError."""
    if (bucket := storage_errors.bucket_of(output)) is not None:
        checking = _bucket_checks(output, bucket, region=region)
    elif (folder := storage.local_path(output)) is not None:
        checking = _folder_checks(folder)
    else:
        checking = _store_checks(output)
    checks: list[Check] = []
    try:
        checks.extend(checking)  # keeps the results before an error
    except _StopChecksError as error:
        checks.append(Check(name="all else", ok=None, found=f"not tried: {error}"))
    if dataset is not None:
        checks.append(_dataset_check(dataset))
    return checks


def describe_machine() -> dict[str, str]:
    """Return versions, cores and memory of this installation by name, for a report of a fault."""
    facts = {
        "prep-tfrecords": tfrecord_io.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "cores": str(cores.cores()),
        "memory": f"{cores.memory_bytes() / 1e9:.1f} GB",
    }
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    return facts


def _probe(folder: str) -> str:
    """Return the path of a probe object; listings skip it, and builds delete it if a check was killed."""
    return storage.join(folder, f"{storage.PARTIAL}doctor-{uuid.uuid4().hex}")


def _attempt(name: str, action: Callable[[], Any] | None, *, path: str) -> Check:
    """Run `action` and return its success as a Check; `action` None means that there is no object to try it on."""
    if action is None:
        return Check(name=name, ok=None, found="not tried: there is no object to try it on")
    try:
        with storage_errors.as_output_error(path):
            action()
    except OutputError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    return Check(name=name, ok=True, found="allowed")


def _write_check(name: str, probe: str) -> Iterator[Check]:
    """Write the probe. Raises: _StopChecksError if that fails."""
    written = _attempt(name, lambda: storage.write_bytes(probe, b"probe"), path=probe)
    yield written
    if not written.ok:
        raise _StopChecksError("nothing can be written")


def _store_checks(output: str) -> Iterator[Check]:
    """Check a storage service other than Google Cloud Storage, through fsspec."""
    probe = _probe(output)
    yield from _write_check("write", probe)
    yield _attempt("read", lambda: storage.read_bytes(probe), path=probe)
    yield _attempt("list", lambda: storage.list_names(output), path=output)
    yield _attempt("delete", lambda: storage.delete(probe), path=probe)


def _folder_checks(folder: str) -> Iterator[Check]:
    """Check a local folder, or the nearest existing folder above it, since a check makes no folder."""
    existing = folder
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        yield Check(name="folder", ok=False, found=f"{existing} is not a folder", remedy="choose another --output")
        raise _StopChecksError("there is no folder")
    yield Check(name="folder", ok=True, found="exists" if existing == folder else f"will be made in {existing}")
    probe = _probe(existing)
    try:
        yield from _write_check("write and fsync", probe)
        yield _lock_check(probe)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)
    free = shutil.disk_usage(existing).free
    enough = free >= _LEAST_FREE_BYTES
    remedy = "" if enough else "free some space, or choose an --output on another disk"
    yield Check(name="space", ok=enough, found=f"{free / 1e9:.1f} GB free", remedy=remedy)


def _lock_check(probe: str) -> Check:
    problem = ""
    with open(probe, "rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            problem = f"not supported by this file system ({error.strerror}): two builds would not notice each other"
    remedy = "run one job at a time in this folder" if problem else ""
    return Check(name="locks", ok=None if problem else True, found=problem or "supported", remedy=remedy)


def _dataset_check(dataset: str) -> Check:
    name = "dataset"
    if "://" not in dataset and not os.path.exists(dataset) and not posixpath.splitext(dataset)[1]:
        found = f"{dataset} is not a local file or folder; names on the hub are not checked"
        return Check(name=name, ok=None, found=found)
    try:
        is_folder = data_files.is_folder(dataset)
        files = data_files.list_folder(dataset)[0] if is_folder else data_files.list_files(dataset)
        if files:
            with storage.as_source_error(dataset):
                fs, inner = storage.file_system(files[0].path)
                fs.cat_file(inner, start=0, end=1)
    except FileNotFoundError:
        files = []
    except PrepError as error:
        return Check(name=name, ok=False, found=error.cause, remedy=error.remedy)
    if not files:
        return Check(name=name, ok=False, found=f"{dataset}: no such file", remedy="check the address")
    return Check(name=name, ok=True, found=f"{len(files)} files; the first can be read")


def _bucket_checks(output: str, bucket: str, *, region: str | None) -> Iterator[Check]:
    credentials = _credentials_check()
    yield credentials
    if credentials.ok is False:
        raise _StopChecksError("without credentials nothing can be written")
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
    remedy = storage_errors.LOGIN_REMEDY
    if found is None:
        return Check(name=name, ok=False, found="none: only public objects can be read", remedy=remedy)
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    problem = ""
    try:
        found.refresh(Request())  # a machine's credentials then name their account
    except GoogleAuthError as error:
        problem = str(error.args[0] if error.args else error)
    kind = next((words for module, words in _KINDS.items() if type(found).__module__.startswith(module)), "")
    account = next((text for each in ("service_account_email", "account") if (text := getattr(found, each, None))), "")
    who = ": ".join(filter(None, (kind or f"{type(found).__module__}.{type(found).__name__}", account)))
    if problem:
        return Check(name=name, ok=False, found=f"{who}; they could not be renewed ({problem})", remedy=remedy)
    return Check(name=name, ok=True, found=who)


def _location_checks(output: str, bucket: str, *, region: str | None) -> Iterator[Check]:
    try:
        with storage_errors.as_output_error(f"gs://{bucket}"), gcs.bucket(output) as (described, _):
            described.reload(**_request())
    except OutputError as error:
        if error.__context__ is None or storage_errors.status_of(error.__context__) != 403:
            yield Check(name="bucket", ok=False, found=error.cause, remedy=error.remedy)
            raise _StopChecksError(error.cause) from error
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
    location, ok, remedy = str(described.location or ""), True, ""
    if region in [location.lower(), *(str(each).lower() for each in described.data_locations or ())]:
        found = f"the bucket is in {region}"
    elif (prefix := _CONTINENTS.get(location.upper())) and region.startswith(prefix):
        found = f"the bucket is in several regions of {location}, which may not include {region}"
        remedy = f"for the highest speed and no cost of traffic, keep the dataset in a bucket in {region}"
    else:
        ok = False
        found = f"the bucket is in {location}, the TPU in {region}: every epoch is read across regions, at a cost"
        remedy = f"gcloud storage buckets create gs://{bucket}-{region} --location={region}"
    return Check(name="region", ok=ok, found=found, remedy=remedy)


def _object_checks(output: str) -> Iterator[Check]:
    """Check each permission for objects by the one request that needs it."""
    probe = _probe(output)
    created = _attempt("storage.objects.create", lambda: storage.write_bytes(probe, b"probe"), path=probe)
    yield created
    with gcs.bucket(probe) as (bucket, key):
        there = [key] if created.ok else []

        def listed() -> None:
            found = bucket.list_blobs(prefix=key if created.ok else None, max_results=1, **_request())
            there.extend(blob.name for blob in found)

        listing = _attempt("storage.objects.list", listed, path=output)
        got = functools.partial(bucket.blob(there[0]).reload, **_request()) if there else None
        yield _attempt("storage.objects.get", got, path=probe)
        yield listing
        deleted = functools.partial(bucket.delete_blob, key, **_request()) if created.ok else None
        yield _attempt("storage.objects.delete", deleted, path=probe)


def _tpu_check(output: str, bucket: str) -> Check:
    """Check a TPU Node's access: it reads as its project's Cloud TPU service account, a TPU VM as the VM's account."""
    number, members = "PROJECT_NUMBER", None
    with contextlib.suppress(Exception), gcs.bucket(output) as (described, _):
        described.reload(**_request())
        number = described.project_number
    with contextlib.suppress(Exception), gcs.bucket(output) as (described, _):
        policy = described.get_iam_policy(requested_policy_version=3, **_request())
        readers = [each for each in policy.bindings if each.get("role", "").removeprefix("roles/storage.") in _READERS]
        members = {member for binding in readers for member in binding.get("members", ())}
    account = f"service-{number}@cloud-tpu.iam.gserviceaccount.com"
    remedy = storage_errors.grant(bucket, account, role="storage.objectViewer")
    if members is None:
        found, ok = "the bucket's permissions cannot be read", None
    elif members & {f"serviceAccount:{account}", "allUsers", "allAuthenticatedUsers"}:
        found, ok, remedy = f"{account} can read", True, ""
    else:
        found, ok = f"{account} is not among the bucket's readers; a TPU Node needs it, a TPU VM reads as its VM", None
    return Check(name="TPU service account", ok=ok, found=found, remedy=remedy)


def _request() -> dict[str, Any]:
    """Return timeout and retries of a request, kept short so that a diagnosis does not wait for an outage to end."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": gcs.TIMEOUT, "retry": DEFAULT_RETRY.with_timeout(_PATIENCE_SECONDS)}
