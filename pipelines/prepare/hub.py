"""What touches the Hugging Face hub or other remote sources, and the errors that it can give, told apart.

The token of `HF_TOKEN` (or of a login) is used by the hub's own client; nothing here reads or stores it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import datasets
import fsspec
import huggingface_hub
import pyarrow as pa
from huggingface_hub import errors as hub_errors

from tfrecord_io.errors import OutputError, PrepError, SourceError

__all__ = ["expand_url", "explained", "resolve_dataset_revision"]

_DISK_FULL = 28


def resolve_dataset_revision(name: str, *, revision: str | None) -> str | None:
    """The commit that `revision` (default: the main branch) names now, so that every worker reads the same one.

    Without a connection to the hub (HF_HUB_OFFLINE) the revision stays as given: only the cache can answer then.
    """
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return revision
    info = huggingface_hub.HfApi().dataset_info(name, revision=revision)
    return info.sha


def expand_url(pattern: str) -> list[str]:
    """The files of a URL with or without a glob, as URLs. Raises: SourceError if there is none."""
    fs, inner = fsspec.core.url_to_fs(pattern)
    found = fs.glob(inner) if "*" in inner or "?" in inner else [inner] if fs.exists(inner) else []
    if not found:
        raise SourceError(f"{pattern}: no such file", remedy="check the address, and that you may list and read it")
    return sorted(fs.unstrip_protocol(path) for path in found)


@contextlib.contextmanager
def explained(dataset: str) -> Iterator[None]:
    """Turns what `datasets` and the hub raise into a SourceError with a remedy."""
    try:
        yield
    except PrepError:
        raise
    except hub_errors.GatedRepoError as error:
        raise SourceError(
            f"{dataset}: access to this dataset is gated, and the credentials in use do not have it",
            remedy="ask for access on its page, then set HF_TOKEN",
        ) from error
    except (hub_errors.RepositoryNotFoundError, datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise SourceError(
            f"{dataset}: no such dataset, file or folder ({_first_line(error)})",
            remedy="check the spelling; for a private dataset set HF_TOKEN",
        ) from error
    except hub_errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{dataset}: no such revision", remedy="give a branch, tag or commit of the dataset as --revision"
        ) from error
    except ConnectionError as error:
        raise SourceError(
            f"{dataset}: no such local file or folder, and the hub cannot be reached ({_first_line(error)})",
            remedy="check the spelling of a local path; for a hub dataset check the network and HF_HUB_OFFLINE",
        ) from error
    except (datasets.exceptions.DatasetGenerationError, pa.ArrowException, ValueError, OSError, RuntimeError) as error:
        raise _unreadable(dataset, error) from error


def _unreadable(dataset: str, error: BaseException) -> PrepError:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, OSError) and cause.errno == _DISK_FULL:
        cache = os.fspath(datasets.config.HF_DATASETS_CACHE)
        return OutputError(
            f"{dataset}: no space left for the dataset cache in {cache}",
            remedy="free some space there, or point HF_DATASETS_CACHE to another disk",
        )
    return SourceError(
        f"{dataset}: cannot be read: {type(cause).__name__}: {_first_line(cause)}",
        remedy="mend or leave out the file named above, or name another config or format",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
