"""Datasets on the Hugging Face hub: one commit of one repository, its files, and what can go wrong with either.

    NAME, --revision ──► dataset_info: commit, private, gated ──► one listing of the whole tree at that commit
    offline          ──► the hub's cache: the folder of a commit that `hf download` filled

The token of `HF_TOKEN` (or of a login) is used by the hub's own client; nothing here reads or stores it. Code of a
dataset is never run.
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

from pipelines.prepare.sources.files import folder_listing
from pipelines.prepare.sources.files.folder_listing import Found, Place
from pipelines.prepare.storage import storage_errors
from pipelines.prepare.storage.persistence import persist
from tfrecord_io.errors import PrepError, SourceError
from tfrecord_io.shown import first_line

__all__ = ["Repository", "address", "explained", "read_range", "repository"]

_SCHEME = "hf://"
_DATASETS = "hf://datasets/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """A dataset at one commit. `needs_token` is true if not everybody may read it; offline nobody has to be asked."""

    name: str
    commit: str
    place: Place
    needs_token: bool


def repository(name: str, *, revision: str | None) -> Repository:
    """The files of a dataset at the commit that `revision` (default: the main branch) names now, so that every worker
    reads the same one.

    Raises: SourceError if it is not there, may not be read, or is made by code of its own.
    """
    if os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
        raise SourceError(
            f"{name}: no such file or folder", remedy="check the path; a hub dataset has the form USER/NAME or NAME"
        )
    found = _cached(name, revision=revision) if constants.HF_HUB_OFFLINE else _online(name, revision)
    if f"{name.rpartition('/')[2]}.py" in found.place.files:
        raise SourceError(
            f"{name}: made by a script of its own, and code of datasets is never run",
            remedy="give --revision refs/convert/parquet, where the hub keeps the files made by most such scripts",
        )
    return found


def address(path: str) -> tuple[str, str | None, str]:
    """(name, revision, path in the repository) of an hf:// address. Raises: SourceError if it is none of a dataset."""
    kind, _, rest = path.removeprefix(_SCHEME).partition("/")
    owner, _, below = rest.partition("/")
    # A revision may have slashes, as in NAME@refs/convert/parquet/data: the client knows where it ends.
    if kind != "datasets" or not owner or not below:
        raise SourceError(
            f"{path}: no dataset of the hub", remedy="give hf://datasets/USER/NAME, and a path or glob in it"
        )
    head, _, inner = below.partition("/")
    name, _, revision = head.partition("@")
    if revision == "refs" and inner.count("/") >= 1:
        kept, inner = inner.split("/")[:2], "/".join(inner.split("/")[2:])
        revision = "/".join(["refs", *kept])
    return f"{owner}/{name}", revision.replace("%2F", "/") or None, inner


def _online(name: str, revision: str | None) -> Repository:
    api = huggingface_hub.HfApi()
    with explained(name):
        info = persist(lambda: api.dataset_info(name, revision=revision), path=name, passes=_passes)
        commit = str(info.sha)
        tree = persist(
            lambda: list(api.list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset")),
            path=name,
            passes=_passes,
        )
    # Addresses have the full name, where an old short one leads to it.
    root = f"{_DATASETS}{info.id if '/' in info.id else name}@{commit}"
    files = {each.path: _found(each, root=root) for each in tree if hasattr(each, "blob_id")}
    place = Place(
        shown=name, files=folder_listing.visible(files, shown=name), fetch=lambda found: _content(found, dataset=name)
    )
    return Repository(name=name, commit=commit, place=place, needs_token=bool(info.private or info.gated))


def _found(file: Any, *, root: str) -> Found:
    mark = file.lfs.sha256 if file.lfs else file.blob_id
    return Found(path=f"{root}/{file.path}", name=file.path, size=file.size, mark=mark, pinned=True)


def _content(found: Found, *, dataset: str) -> bytes:
    with explained(dataset):
        if not found.size:
            return b""
        return persist(lambda: read_range(found.path, 0, found.size), path=found.path, passes=_passes)


def _cached(name: str, *, revision: str | None) -> Repository:
    """What the hub's cache has. The cache of `datasets` is no place for it: that has rows, and no files."""
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
            f"{name}: whether all of its files are in the hub's cache is not known",
            remedy=f"{remedy}; or name the folder {folder} to read what is there",
        )
    found = folder_listing.local(folder)
    return Repository(
        name=name,
        commit=commit,
        place=dataclasses.replace(found, shown=name),
        needs_token=False,
    )


def _is_whole(name: str, commit: str) -> bool:
    """Whether the cache knows what belongs to a commit: a folder without that may lack any file."""
    listing: Any = getattr(huggingface_hub, "get_cached_repo_tree", None)
    if listing is None:
        return False
    try:
        return bool(listing(name, repo_type="dataset", revision=commit))
    except hub_errors.CachedRepoTreeNotFoundError:
        return False


def _passes(error: BaseException) -> bool:
    """Whether the hub may well answer a little later: it asks to wait, or is overloaded."""
    response = getattr(error, "response", None)
    return getattr(response, "status_code", 0) in (429, 502, 503, 504) or storage_errors.is_transient(error)


@contextlib.contextmanager
def explained(dataset: str) -> Iterator[None]:
    """Turns what the hub's client raises into a SourceError with a remedy."""
    try:
        yield
    except PrepError:
        raise
    except hub_errors.GatedRepoError as error:
        raise SourceError(
            f"{dataset}: access to this dataset is gated, and the credentials in use do not have it",
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
            remedy="try again later; the same command goes on where it stopped",
        ) from error
    except Exception as error:
        if not _is_network(error):
            raise
        raise SourceError(
            f"{dataset}: no such local file or folder, and the hub cannot be reached ({first_line(error)})",
            remedy="check the spelling of a local path; for a hub dataset check the network and HF_HUB_OFFLINE",
        ) from error


def _is_network(error: Exception) -> bool:
    # The HTTP client below the hub's own changes with its versions, and each has a tree of errors of its own.
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("http", "requests", "urllib3"))


_SECONDS = 60


def read_range(address: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of `hf://datasets/NAME@COMMIT/FILE`.

    Raises: FileNotFoundError; SourceError if it may not be read; what the client raises if the hub cannot be asked.
    """
    # Its exports are made at run time.
    utils: Any = huggingface_hub.utils
    headers = {**utils.build_hf_headers(), "range": f"bytes={start}-{stop - 1}"}
    try:
        response = utils.http_backoff("GET", _url(address), headers=headers, timeout=_SECONDS)
        utils.hf_raise_for_status(response)
    except hub_errors.OfflineModeIsEnabled as error:
        raise SourceError(f"{address}: cannot be read while HF_HUB_OFFLINE is set", remedy="unset it") from error
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
