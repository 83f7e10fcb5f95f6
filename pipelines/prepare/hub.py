"""What touches the Hugging Face hub or other remote sources, and the errors that it can give, told apart.

The token of `HF_TOKEN` (or of a login) is used by the hub's own client; nothing here reads or stores it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub_errors

from pipelines.prepare import packed_files, storage, storage_errors
from pipelines.prepare.hints import to_utf8
from tfrecord_io.errors import OutputError, PrepError, SourceError
from tfrecord_io.shown import is_web, visible, without_access, without_secrets

__all__ = ["cached_revision", "expand_url", "explained", "resolve_dataset_revision"]

_DISK_FULL = 28
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


def resolve_dataset_revision(name: str, *, revision: str | None) -> str | None:
    """The commit that `revision` (default: the main branch) names now, so that every worker reads the same one.

    None without a connection to the hub (HF_HUB_OFFLINE): `datasets` then takes what its cache has, and
    `cached_revision` says which one that was.
    """
    if os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
        raise SourceError(
            f"{name}: no such file or folder", remedy="check the path; a hub dataset has the form USER/NAME or NAME"
        )
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return None
    info = huggingface_hub.HfApi().dataset_info(name, revision=revision)
    return info.sha


def cached_revision(paths: Sequence[str], *, dataset: str, wanted: str | None) -> str | None:
    """The commit of a dataset in the cache of `datasets`, which names a folder by it; None if it does not.

    Raises: SourceError if it is not the `wanted` one, or that cannot be known: the cache was not asked for it.
    """
    found = next((part for path in paths for part in path.split(os.sep) if _COMMIT.match(part)), None)
    if wanted is not None and wanted != found:
        raise SourceError(
            f"{dataset}: --revision {wanted} cannot be looked up offline, and the cache has commit {found}",
            remedy="unset HF_HUB_OFFLINE, or give that commit as --revision",
        )
    return found


def expand_url(pattern: str) -> list[str]:
    """The files of a URL with or without a glob, as URLs. Raises: SourceError if there is none."""
    fs, inner = storage.file_system(pattern)
    found: list[str] = []
    with contextlib.suppress(FileNotFoundError), storage.source_explained(pattern):
        path = without_access(pattern)
        found = fs.glob(inner) if "*" in path or "?" in path else _existing(fs, inner)
    if not found:
        raise SourceError(f"{pattern}: no such file", remedy="check the address, and that you may list and read it")
    return sorted(fs.unstrip_protocol(path) for path in found)


def _existing(fs: Any, path: str) -> list[str]:
    try:
        fs.info(path)
        return [path]
    except FileNotFoundError as error:
        cause = error.__cause__
    # FileNotFoundError is what fsspec makes of whatever its client for the web raises.
    if isinstance(cause, Exception) and storage_errors.status_of(cause) != 404:
        raise cause
    return []


@contextlib.contextmanager
def explained(dataset: str, *, files: Sequence[str] = ()) -> Iterator[None]:
    """Turns what `datasets` and the hub raise into a SourceError with a remedy; `files` are those being read."""
    import datasets  # takes most of a second, and whoever asks for this has it

    said: list[str] = []
    try:
        with _listening(said):
            yield
    except PrepError:
        raise
    except hub_errors.GatedRepoError as error:
        raise SourceError(
            f"{dataset}: access to this dataset is gated, and the credentials in use do not have it",
            remedy="ask for access on its page, then set HF_TOKEN",
        ) from error
    except (hub_errors.RepositoryNotFoundError, datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        if isinstance(error, OSError) and _is_of_cache(error):
            raise _unreadable(dataset, error) from error
        raise SourceError(
            f"{dataset}: no such dataset, file or folder ({_first_line(error)})",
            remedy="check the spelling; for a private dataset set HF_TOKEN",
        ) from error
    except hub_errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{dataset}: no such revision", remedy="give a branch, tag or commit of the dataset as --revision"
        ) from error
    except hub_errors.HfHubHTTPError as error:
        raise SourceError(
            f"{dataset}: the hub answered with an error ({_first_line(error)})",
            remedy="try again later; the same command goes on where it stopped",
        ) from error
    except Exception as error:
        if is_web(dataset) and (_is_network(error) or storage_errors.is_transient(error)):
            storage_errors.raise_as(SourceError, dataset, error, done="read")
        if _is_network(error):
            raise _unreachable(dataset, error) from error
        # Looked for only after a failure: packed files are read to their end.
        if packed := next(((path, what) for path in files if (what := packed_files.damage(path))), None):
            raise packed_files.damaged(*packed) from error
        raise _unreadable(_culprit(said, files) or dataset, error) from error


@contextlib.contextmanager
def _listening(said: list[str]) -> Iterator[None]:
    """Takes what `datasets` logs as errors: it is said once, by us, and often only the log names the file."""
    logger = logging.getLogger("datasets")
    before = logger.handlers

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                said.append(record.getMessage())
                return
            record.msg, record.args = visible(without_secrets(record.getMessage()), lines=True), None
            for handler in before:
                handler.handle(record)

    logger.handlers = [Listener()]
    try:
        yield
    finally:
        logger.handlers = before


def _culprit(said: Sequence[str], files: Sequence[str]) -> str | None:
    """The file that could not be read, as the log names it."""
    return next((path for path in files if any(path in line for line in said)), None)


def _is_network(error: Exception) -> bool:
    # The HTTP client below the hub's own changes with its versions, and each has a tree of errors of its own.
    return isinstance(error, ConnectionError) or type(error).__module__.startswith(("http", "requests", "urllib3"))


def _unreachable(dataset: str, error: Exception) -> PrepError:
    return SourceError(
        f"{dataset}: no such local file or folder, and the hub cannot be reached ({_first_line(error)})",
        remedy="check the spelling of a local path; for a hub dataset check the network and HF_HUB_OFFLINE",
    )


def _unreadable(dataset: str, error: BaseException) -> PrepError:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno == _DISK_FULL:
        import datasets

        cache = os.fspath(datasets.config.HF_DATASETS_CACHE)
        return OutputError(
            f"{dataset}: no space left for the dataset cache in {cache}",
            remedy="free some space there, or point HF_DATASETS_CACHE to another disk",
        )
    if isinstance(cause, OSError) and _is_of_cache(cause):
        return OutputError(
            f"{cause.filename}: the dataset cache cannot be written there: {cause.strerror}",
            remedy="point HF_HOME to a folder that you may write to",
        )
    if "scripts are no longer supported" in str(cause):
        return SourceError(
            f"{dataset}: made by a script of its own, and code of datasets is never run",
            remedy="give --revision refs/convert/parquet, where the hub keeps the files made by most such scripts",
        )
    if isinstance(cause, UnicodeDecodeError):
        return SourceError(
            f"{dataset}: cannot be read: not UTF-8, {cause.reason} at {cause.object[cause.start : cause.start + 8]!r}",
            remedy=to_utf8(cause.object),
        )
    return SourceError(
        f"{dataset}: cannot be read: {type(cause).__name__}: {_first_line(cause)}",
        remedy="mend the file or leave it out, or name another config or format",
    )


def _is_of_cache(error: OSError) -> bool:
    """Whether it is about the folder of the dataset cache, one above it that cannot be made, or what is in it."""
    import datasets

    cache, refused = os.fspath(datasets.config.HF_DATASETS_CACHE), error.filename
    if not isinstance(refused, str) or (isinstance(error, FileNotFoundError) and os.path.isdir(cache)):
        return False
    return os.path.commonpath([cache, refused]) in (cache, refused) if os.path.isabs(refused) else False


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
