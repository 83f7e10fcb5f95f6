"""Access to Google Cloud Storage: credentials, remedies for refusals, and the region of a bucket."""

import os
import re
import warnings
from typing import Any

from tfrecord_io.errors import ConfigError, PrepError

EMULATOR = "STORAGE_EMULATOR_HOST"
KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_LOGIN_REMEDY = (
    f"run `gcloud auth application-default login`, or let {KEY_FILE} name a service account's key file; on a VM give "
    "it a service account and the scope cloud-platform"
)
_ACCOUNT = re.compile(r"(\S+@\S+?)\s+does not have storage\.")
# Remedies for a refusal (400, 403), by a word in the answer.
_REMEDY_BY_WORD = {
    "scope": "give the VM the scope cloud-platform: gcloud compute instances set-service-account --help",
    "billing": "link a billing account to the project: gcloud billing projects link --help",
    "requester pays": "name a project that you may bill: export FSSPEC_GS_REQUESTER_PAYS=PROJECT",
    "user project": "name an existing project that you may use, in FSSPEC_GS_REQUESTER_PAYS or FSSPEC_GS_PROJECT",
}
_CONTINENTS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}

# Name, whether it is all right (None if uncertain), finding, remedy.
Check = tuple[str, bool | None, str, str]


def find_credentials() -> Any | None:
    """Return the application default credentials, None without any or with an emulator.

    Raises: ConfigError if GOOGLE_APPLICATION_CREDENTIALS names no credentials.
    """
    if os.environ.get(EMULATOR):
        return None
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        with warnings.catch_warnings():
            # It warns about a missing quota project, which storage does not need.
            warnings.simplefilter("ignore")
            credentials, _ = google.auth.default(scopes=[_SCOPE])
    except DefaultCredentialsError as error:
        if key_file := os.environ.get(KEY_FILE):
            raise ConfigError(
                f"{KEY_FILE}={key_file}: no credentials ({error.args[0]})",
                remedy="let it name a service account's key file, or unset it",
            ) from error
        return None
    return credentials


def configured() -> dict[str, Any]:
    """Return the user's settings for gcsfs in fsspec, such as FSSPEC_GS_REQUESTER_PAYS."""
    import fsspec

    return {**fsspec.config.conf.get("gs", {}), **fsspec.config.conf.get("gcs", {})}


def explanation(bucket: str, done: str, status: int | None, said: str) -> tuple[str, str] | None:
    """Return the cause and the remedy for a status of the service, if it has special ones.

    done: `read` or `written`. said: the service's message.
    """
    if status == 404:
        make = f"gcloud storage buckets create gs://{bucket} --location=REGION"
        return f"there is no bucket gs://{bucket}", f"correct the name, or make it where the TPU is: {make}"
    if status == 401:
        return f"no valid credentials for gs://{bucket} ({said})", _LOGIN_REMEDY
    if status not in (400, 403):
        return None
    known = [remedy for word, remedy in _REMEDY_BY_WORD.items() if word in said.lower()]
    found = _ACCOUNT.search(said)
    account = found[1] if found else "YOUR_ACCOUNT"
    member = f"{'serviceAccount' if account.endswith('gserviceaccount.com') else 'user'}:{account}"
    role = "roles/storage.objectViewer" if done == "read" else "roles/storage.objectAdmin"
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member} --role={role}"
    return said, known[0] if known else grant


def credentials_check() -> Check:
    if host := os.environ.get(EMULATOR):
        return "credentials", True, f"none needed: {EMULATOR} names an emulator at {host}", ""
    if "token" in configured():
        return "credentials", None, "a token set for fsspec, which overrides all other credentials", ""
    try:
        found = find_credentials()
    except PrepError as error:
        return "credentials", False, error.cause, error.remedy
    if found is None:
        return "credentials", False, "none: only public objects can be read", _LOGIN_REMEDY
    account = next((text for each in ("service_account_email", "account") if (text := getattr(found, each, None))), "")
    return "credentials", True, f"{type(found).__module__} {account}".strip(), ""


def region_check(described: Any, region: str) -> Check:
    """Compare a bucket's location with a TPU's region or zone."""
    region = re.sub(r"-[a-z]$", "", region.lower())
    location, ok, remedy = str(described.location or ""), True, ""
    if region in [location.lower(), *(str(each).lower() for each in described.data_locations or ())]:
        found = f"the bucket is in {region}"
    elif (prefix := _CONTINENTS.get(location.upper())) and region.startswith(prefix):
        found = f"the bucket is in several regions of {location}, which may not include {region}"
        remedy = f"for the highest speed and no cost of traffic, keep the dataset in a bucket in {region}"
    else:
        ok = False
        found = f"the bucket is in {location}, the TPU in {region}: every epoch is read across regions, at a cost"
        remedy = f"gcloud storage buckets create gs://{described.name}-{region} --location={region}"
    return "region", ok, found, remedy
