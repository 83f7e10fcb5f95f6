"""Resolve datasets on the Hugging Face Hub to commits, and explain errors of the Hub's client."""

import contextlib
import dataclasses
import errno
import os
import re
from collections.abc import Iterator
from typing import Any

from pipelines.prepare.options import paths
from pipelines.prepare.process import hub_libraries
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.storage_errors import retry_transient
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line

_DATASETS = "hf://datasets/"
_SECONDS = 60
_NO_SUCH = "no such dataset, file or folder"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """Dataset on the Hub at one commit. `folder`: its copy in the Hub's cache if HF_HUB_OFFLINE is set, else None."""

    name: str
    commit: str
    needs_token: bool = False
    folder: str | None = None

    @property
    def root(self) -> str:
        return f"{_DATASETS}{self.name}@{self.commit}"

    def name_of(self, path: str) -> str:
        """Return a file's path relative to the repository."""
        return path[len(self.folder or self.root) :].lstrip("/")


def is_repository(dataset: str) -> bool:
    """Return whether DATASET names a whole dataset on the Hub."""
    if not dataset.startswith("hf://"):
        return not paths.names_files(dataset)
    name = re.sub("@refs/[^/]*/", "@refs%2F", dataset.removeprefix(_DATASETS).rstrip("/"))
    return dataset.startswith(_DATASETS) and name.count("/") == 1


def repository(dataset: str, *, revision: str | None) -> Repository:
    """Return a dataset at its current commit of `revision`, by default the main branch. Raises: SourceError."""
    import huggingface_hub
    from huggingface_hub import constants

    name, _, in_address = dataset.removeprefix(_DATASETS).rstrip("/").partition("@")
    revision = in_address.replace("%2F", "/") or revision
    if constants.HF_HUB_OFFLINE:
        return _cached(name, revision=revision)
    api = huggingface_hub.HfApi()
    with as_source_error(name):
        if not hub_libraries.hub_answers():
            raise ConnectionError("the Hub did not answer within 10 seconds")
        info = retry_transient(lambda: api.dataset_info(name, revision=revision), path=name)
    # Addresses need the full name of old short names such as `imdb`.
    full = info.id if "/" in info.id else name
    return Repository(name=full, commit=str(info.sha), needs_token=bool(info.private or info.gated))


def pin(address: str, *, revision: str | None) -> tuple[str, Repository]:
    """Pin an address in a Hub dataset to a commit; return it and the dataset. Raises: like `repository`."""
    owner, _, below = address.removeprefix(_DATASETS).partition("/")
    head, _, inner = below.replace("@refs/", "@refs%2F").partition("/")
    if head.partition("@")[2].startswith("refs%2F"):  # NAME@refs/convert/parquet/PATH
        last, _, inner = inner.partition("/")
        head = f"{head}%2F{last}"
    if not address.startswith(_DATASETS) or not inner:
        remedy = "give hf://datasets/USER/NAME, and a path or glob in it"
        raise SourceError(f"{address}: not a dataset on the Hub", remedy=remedy)
    dataset = repository(f"{owner}/{head}", revision=revision)
    return f"{dataset.folder or dataset.root}/{inner}", dataset


def _cached(name: str, *, revision: str | None) -> Repository:
    import huggingface_hub
    from huggingface_hub import errors

    wanted = f" --revision {revision}" if revision else ""
    try:
        folder = huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True)
        # Raises an error if the commit's file list isn't cached: any file may be missing.
        huggingface_hub.get_cached_repo_tree(name, repo_type="dataset", revision=os.path.basename(folder))
    except (errors.HFValidationError, errors.CachedRepoTreeNotFoundError, FileNotFoundError) as error:
        raise SourceError(
            f"{name}{wanted}: no such local file or folder, and while HF_HUB_OFFLINE is set a dataset must be in the "
            "Hub's cache with all of its files",
            remedy="unset HF_HUB_OFFLINE, or run once with a connection: "
            f"hf download {name} --repo-type dataset{wanted}",
        ) from error
    return Repository(name=name, commit=os.path.basename(folder), folder=folder)


@contextlib.contextmanager
def as_source_error(dataset: str) -> Iterator[None]:
    """Within the context, turn errors of the Hub's client into SourceError."""
    from huggingface_hub import errors

    remedies = {
        errors.GatedRepoError: (
            "this dataset is gated, and you have no access",
            "ask for access on its page, then set HF_TOKEN",
        ),
        errors.RevisionNotFoundError: ("no such revision", "give a branch, tag or commit of the dataset as --revision"),
        errors.RepositoryNotFoundError: (_NO_SUCH, "check the spelling; for a private dataset set HF_TOKEN"),
        errors.HFValidationError: (_NO_SUCH, "check the spelling"),
        errors.HfHubHTTPError: ("the Hub answered with an error", "run the same command again later"),
    }
    try:
        yield
    except PrepError:
        raise
    except Exception as error:
        known = next((words for kind, words in remedies.items() if isinstance(error, kind)), None)
        # Versions of the client use different HTTP libraries.
        of_network = type(error).__module__.startswith(("http", "requests", "urllib3"))
        if known is None and not of_network and not isinstance(error, ConnectionError):
            raise
        cause, remedy = known or (
            "no such local file or folder, and the Hub cannot be reached",
            "check the spelling of a local path; for a Hub dataset check the network, or set HF_HUB_OFFLINE=1 to use "
            "the cache of the Hub",
        )
        raise SourceError(f"{dataset}: {cause} ({first_line(error)})", remedy=remedy) from error


def read_range(address: str, start: int, stop: int) -> bytes:
    """Read the bytes [start, stop) of a file at `hf://datasets/NAME@COMMIT/FILE`.

    Raises: FileNotFoundError, SourceError, other errors of the Hub's client.
    """
    import huggingface_hub.utils
    from huggingface_hub import errors

    utils: Any = huggingface_hub.utils  # the module creates its exports at run time
    name, _, rest = address.removeprefix(_DATASETS).partition("@")
    revision, _, file = rest.partition("/")
    url = huggingface_hub.hf_hub_url(name, file, repo_type="dataset", revision=revision)
    headers = {**utils.build_hf_headers(), "range": f"bytes={start}-{stop - 1}"}
    try:
        response = utils.http_backoff("GET", url, headers=headers, timeout=_SECONDS)
        utils.hf_raise_for_status(response)
    except errors.OfflineModeIsEnabled as error:
        cause = f"{address}: cannot be read while HF_HUB_OFFLINE is set"
        raise SourceError(cause, remedy="unset HF_HUB_OFFLINE") from error
    except errors.HfHubHTTPError as error:
        status = storage_errors.status_of(error)
        if status in (401, 403):
            raise SourceError(
                f"{address}: the Hub refuses access (status {status})",
                remedy="ask for access on the page of the dataset, then set HF_TOKEN",
            ) from error
        if status == 404:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address) from error
        raise
    return bytes(response.content)
