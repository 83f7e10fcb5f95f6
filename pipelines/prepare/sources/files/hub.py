"""Datasets on the Hugging Face hub: the files of a repository at one commit, and errors of the hub with remedies.

    NAME, --revision ──► dataset_info: commit, private, gated ──► one listing of the whole tree at that commit
    offline          ──► the hub's cache: the folder of a commit that `hf download` filled

The hub's own client uses the token of `HF_TOKEN` or of a login; nothing here reads or stores it. Code of a dataset is
never run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections.abc import Iterator
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub import utils as hub_utils

from pipelines.prepare.process import hub_libraries
from pipelines.prepare.sources.files import folder_listing
from pipelines.prepare.sources.files.folder_listing import FolderListing, ListedFile
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.persistence import retry_transient
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line

__all__ = ["Repository", "as_source_error", "parse_address", "read_range", "repository"]

_SCHEME = "hf://"
_DATASETS = "hf://datasets/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """A dataset at one commit. `needs_token`: it is private or gated; False for a cached one."""

    name: str
    commit: str
    listing: FolderListing
    needs_token: bool


def repository(name: str, *, revision: str | None) -> Repository:
    """List a dataset at the commit that `revision` (default: the main branch) names now.

    Every worker then reads the same commit.

    Raises: SourceError if it does not exist, cannot be read, or is made by a script.
    """
    if os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
        raise SourceError(
            f"{name}: no such file or folder", remedy="check the path; a hub dataset has the form USER/NAME or NAME"
        )
    if not constants.HF_HUB_OFFLINE and not hub_libraries.hub_answers():
        raise SourceError(
            f"{name}: no such local file or folder, and the hub cannot be reached (no answer in 10 seconds)",
            remedy="check the spelling of a local path; for a hub dataset check the network, or set HF_HUB_OFFLINE=1 "
            "to use the cache of the hub",
        )
    found = _cached(name, revision=revision) if constants.HF_HUB_OFFLINE else _online(name, revision)
    if f"{name.rpartition('/')[2]}.py" in found.listing.files:
        raise SourceError(
            f"{name}: this dataset is made by a script, and code of datasets is never run",
            remedy="give --revision refs/convert/parquet, where the hub keeps the output of most such scripts",
        )
    return found


def parse_address(path: str) -> tuple[str, str | None, str]:
    """Split an hf:// address into name, revision and path in the repository. Raises: SourceError."""
    kind, _, rest = path.removeprefix(_SCHEME).partition("/")
    owner, _, below = rest.partition("/")
    if kind != "datasets" or not owner or not below:
        raise SourceError(
            f"{path}: not a dataset of the hub", remedy="give hf://datasets/USER/NAME, and a path or glob in it"
        )
    head, _, inner = below.partition("/")
    name, _, revision = head.partition("@")
    if revision == "refs" and inner.count("/") >= 1:  # NAME@refs/convert/parquet/PATH
        kept, inner = inner.split("/")[:2], "/".join(inner.split("/")[2:])
        revision = "/".join(["refs", *kept])
    return f"{owner}/{name}", revision.replace("%2F", "/") or None, inner


def _online(name: str, revision: str | None) -> Repository:
    api = huggingface_hub.HfApi()
    with as_source_error(name):
        info = retry_transient(lambda: api.dataset_info(name, revision=revision), path=name, passes=_is_transient)
        commit = str(info.sha)
        tree = retry_transient(
            lambda: list(api.list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset")),
            path=name,
            passes=_is_transient,
        )
    # The hub resolves old short names such as `imdb` to full ones, which addresses need.
    root = f"{_DATASETS}{info.id if '/' in info.id else name}@{commit}"
    files = {each.path: _listed(each, root=root) for each in tree if hasattr(each, "blob_id")}
    listing = FolderListing(
        shown=name, files=folder_listing.visible(files, shown=name), fetch=lambda file: _content(file, dataset=name)
    )
    return Repository(name=name, commit=commit, listing=listing, needs_token=bool(info.private or info.gated))


def _listed(file: Any, *, root: str) -> ListedFile:
    tag = file.lfs.sha256 if file.lfs else file.blob_id
    return ListedFile(path=f"{root}/{file.path}", name=file.path, size=file.size, tag=tag, pinned=True)


def _content(file: ListedFile, *, dataset: str) -> bytes:
    with as_source_error(dataset):
        if not file.size:
            return b""
        return retry_transient(lambda: read_range(file.path, 0, file.size), path=file.path, passes=_is_transient)


def _cached(name: str, *, revision: str | None) -> Repository:
    """List a dataset in the hub's cache. (The cache of `datasets` holds rows, not files.)"""
    wanted = f" --revision {revision}" if revision else ""
    remedy = f"unset HF_HUB_OFFLINE, or run once with a connection: hf download {name} --repo-type dataset{wanted}"
    try:
        folder = huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True)
    except hub_errors.HFValidationError as error:
        raise SourceError(f"{name}: no such dataset, file or folder", remedy="check the spelling") from error
    except (hub_errors.LocalEntryNotFoundError, FileNotFoundError) as error:
        what = f"--revision {revision} is not in the hub's cache" if revision else "it is not in the hub's cache"
        raise SourceError(
            f"{name}: no such local file or folder, and the hub cannot be reached offline; {what}", remedy=remedy
        ) from error
    except hub_errors.IncompleteSnapshotError as error:
        raise SourceError(f"{name}: not all of its files are in the hub's cache", remedy=remedy) from error
    commit = os.path.basename(folder)
    if not _is_whole(name, commit):
        raise SourceError(
            f"{name}: cannot tell whether all of its files are in the hub's cache",
            remedy=f"{remedy}; or name the folder {folder} to read the files in it",
        )
    listing = dataclasses.replace(folder_listing.list_local(folder), shown=name)
    return Repository(name=name, commit=commit, listing=listing, needs_token=False)


def _is_whole(name: str, commit: str) -> bool:
    """Whether the cache holds the listing of a commit; without it, any file may be missing."""
    cached_tree: Any = getattr(huggingface_hub, "get_cached_repo_tree", None)
    if cached_tree is None:
        return False
    try:
        return bool(cached_tree(name, repo_type="dataset", revision=commit))
    except hub_errors.CachedRepoTreeNotFoundError:
        return False


def _is_transient(error: BaseException) -> bool:
    """Whether a later request may succeed: the hub asks to wait, or is overloaded."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", 0) in (429, 502, 503, 504) or storage_errors.is_transient(error)


@contextlib.contextmanager
def as_source_error(dataset: str) -> Iterator[None]:
    """Turn errors of the hub's client into a SourceError with a remedy."""
    try:
        yield
    except PrepError:
        raise
    except hub_errors.GatedRepoError as error:
        raise SourceError(
            f"{dataset}: this dataset is gated, and the credentials in use have no access",
            remedy="ask for access on its page, then set HF_TOKEN",
        ) from error
    except hub_errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{dataset}: no such revision", remedy="give a branch, tag or commit of the dataset as --revision"
        ) from error
    except (hub_errors.RepositoryNotFoundError, hub_errors.HFValidationError, FileNotFoundError) as error:
        raise SourceError(
            f"{dataset}: no such dataset, file or folder ({first_line(error)})",
            remedy="check the spelling; for a private dataset set HF_TOKEN",
        ) from error
    except hub_errors.HfHubHTTPError as error:
        raise SourceError(
            f"{dataset}: the hub answered with an error ({first_line(error)})",
            remedy="run the same command again later; it goes on where it stopped",
        ) from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise SourceError(
            f"{dataset}: no such local file or folder, and the hub cannot be reached ({first_line(error)})",
            remedy="check the spelling of a local path; for a hub dataset check the network and HF_HUB_OFFLINE",
        ) from error


def _is_network(error: Exception) -> bool:
    # Versions of the hub's client use different HTTP libraries, each with its own errors.
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("http", "requests", "urllib3"))


_SECONDS = 60


def read_range(address: str, start: int, stop: int) -> bytes:
    """Read bytes [start, stop) of `hf://datasets/NAME@COMMIT/FILE`.

    Raises: FileNotFoundError; SourceError if access is refused; the client's error if the hub cannot be reached.
    """
    # The module makes its exports at run time, which mypy cannot see.
    utils: Any = hub_utils
    headers = {**utils.build_hf_headers(), "range": f"bytes={start}-{stop - 1}"}
    try:
        response = utils.http_backoff("GET", _url(address), headers=headers, timeout=_SECONDS)
        utils.hf_raise_for_status(response)
    except hub_errors.OfflineModeIsEnabled as error:
        raise SourceError(
            f"{address}: cannot be read while HF_HUB_OFFLINE is set", remedy="unset HF_HUB_OFFLINE"
        ) from error
    except hub_errors.HfHubHTTPError as error:
        status = storage_errors.status_of(error)
        if status in (401, 403):
            raise SourceError(
                f"{address}: the hub refuses access (status {status})",
                remedy="ask for access on the page of the dataset, then set HF_TOKEN",
            ) from error
        if status == 404:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address) from error
        raise
    content: bytes = response.content
    return content


@functools.lru_cache(maxsize=1_024)
def _url(address: str) -> str:
    name, _, rest = address.removeprefix(_DATASETS).partition("@")
    revision, _, file = rest.partition("/")
    return str(huggingface_hub.hf_hub_url(name, file, repo_type="dataset", revision=revision))
