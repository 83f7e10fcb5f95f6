"""Access to Google Cloud Storage: credentials, remedies for refused requests, and buckets' regions."""

import os
import re
import warnings
from typing import Any, NamedTuple

from tfrecord_io.errors import ConfigError, PrepError
from tfrecord_io.shown import without_secrets

EMULATOR = "STORAGE_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_LOGIN_REMEDY = (
    f"run `gcloud auth application-default login`, or set {KEY_FILE} to the path of a service account's key file; give "
    "a VM a service account and the scope cloud-platform"
)
_ACCOUNT = re.compile(r"(\S+@\S+?)\s+does not have storage\.")
# Remedies for a refused request (status 400 or 403), by words in the answer.
_REMEDY_BY_WORD = {
    "scope": "give the VM the scope cloud-platform: gcloud compute instances set-service-account --help",
    "billing": "link a billing account to the project: gcloud billing projects link --help",
    "requester pays": "name a project that you may bill: export FSSPEC_GS_REQUESTER_PAYS=PROJECT",
    "user project": "name an existing project that you may use, in FSSPEC_GS_REQUESTER_PAYS or FSSPEC_GS_PROJECT",
}
_CONTINENTS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}


class Check(NamedTuple):
    """Result of a check. `ok`: None if uncertain or unimportant. `found`: the result in words."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


def find_credentials() -> Any | None:
    """Return Google's application default credentials, None without any or for an emulator. Raises: ConfigError."""
    if os.environ.get(EMULATOR):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        with warnings.catch_warnings():
            # google.auth warns about a missing quota project, which storage does not need.
            warnings.simplefilter("ignore")
            credentials, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if key_file := os.environ.get(KEY_FILE):
            raise ConfigError(
                f"{KEY_FILE}={key_file}: cannot be used as credentials ({error.args[0]})",
                remedy="set it to the path of a service account's key file, or unset it",
            ) from error
        return None
    return credentials


def configured() -> dict[str, Any]:
    """Return the user's fsspec settings for gcsfs, such as FSSPEC_GS_REQUESTER_PAYS."""
    import fsspec

    return {**fsspec.config.conf.get("gs", {}), **fsspec.config.conf.get("gcs", {})}


def explanation(bucket: str, done: str, status: int | None, message: str) -> tuple[str, str] | None:
    """Return (cause, remedy) for an HTTP status, or None. `done`: read or written. `message`: the service's answer."""
    if status == 404:
        make = f"gcloud storage buckets create gs://{bucket} --location=REGION"
        remedy = f"correct the name, or create the bucket in the TPU's region: {make}"
        return f"there is no bucket gs://{bucket}", remedy
    if status == 401:
        return f"no valid credentials for gs://{bucket} ({message})", _LOGIN_REMEDY
    if status not in (400, 403):
        return None
    known = [remedy for word, remedy in _REMEDY_BY_WORD.items() if word in message.lower()]
    account = match[1] if (match := _ACCOUNT.search(message)) else "YOUR_ACCOUNT"
    member = f"{'serviceAccount' if account.endswith('gserviceaccount.com') else 'user'}:{account}"
    role = "roles/storage.objectViewer" if done == "read" else "roles/storage.objectAdmin"
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member} --role={role}"
    return message, known[0] if known else grant


def credentials_check() -> Check:
    if host := os.environ.get(EMULATOR):
        return Check("credentials", True, f"none needed: {EMULATOR} names an emulator at {without_secrets(host)}")
    if "token" in configured():
        return Check("credentials", None, "a token set for fsspec, which overrides all other credentials")
    try:
        credentials = find_credentials()
    except PrepError as error:
        return Check("credentials", False, error.cause, error.remedy)
    if credentials is None:
        return Check("credentials", False, "none: only public objects can be read", _LOGIN_REMEDY)
    account = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None) or ""
    return Check("credentials", True, f"{type(credentials).__module__} {account}".strip())


def region_check(described: Any, region: str) -> Check:
    """Check whether the bucket `described`, a `Bucket` of google-cloud-storage, is in a TPU's region or zone."""
    region = re.sub(r"-[a-z]$", "", region.lower())
    location = str(described.location or "")
    if region in [location.lower(), *(str(part).lower() for part in described.data_locations or ())]:
        return Check("region", True, f"the bucket is in {region}")
    if (prefix := _CONTINENTS.get(location.upper())) and region.startswith(prefix):
        finding = f"the bucket is in several regions of {location}, which may not include {region}"
        remedy = f"for the highest speed and no cost of traffic, keep the dataset in a bucket in {region}"
        return Check("region", True, finding, remedy)
    finding = f"the bucket is in {location} and the TPU in {region}, so reading every epoch across regions costs money"
    make = f"gcloud storage buckets create gs://{described.name}-{region} --location={region}"
    return Check("region", False, finding, f"create a bucket in the TPU's region: {make}")
