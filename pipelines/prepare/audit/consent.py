"""The user's consent to use the functions and addresses that are stored in a dataset.

A digest in the manifest proves nothing, since manifest and text have the same author. docs/design.md has the rules ("A
stranger's dataset").
"""

import dataclasses
import glob
import itertools
import os
import re
from collections.abc import Sequence

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import FunctionOption
from pipelines.prepare.sources.rows import user_functions
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import ConfigError, SourceError
from tfrecord_io.shown import without_secrets

# Prefix of a path inside an archive.
_MEMBER = re.compile(r"\b(zip|tar|gzip|bz2|xz|lz4|zstd)://[^:]*::")
# Files in these folders look plain, but reading them may have effects.
_NO_DATA = ("/proc/", "/sys/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consent:
    """The source and functions that the user named, and whether functions stored in a dataset may run."""

    source: str | None = None
    functions: tuple[FunctionOption, ...] = ()
    run_stored: bool = False


NONE = Consent()


def functions_to_run(stored: Sequence[UserFunction], consent: Consent, *, root: str) -> Sequence[UserFunction]:
    """Return the functions to run on a dataset's rows: the user's, or the `stored` ones if the user consents.

    Raises: ConfigError if the user's functions differ from the stored ones, or the user neither names functions nor
    consents.
    """
    if not consent.functions:
        if stored and not consent.run_stored:
            again = " ".join(function.option for function in stored)
            raise ConfigError(
                f"{root}: the dataset has stored functions that must run on its rows, {_listed(stored)}; none was run",
                remedy=f"if you have the functions, name them again: {again}; or read their text in the dataset's "
                ".prep/*/source.json, and give --run-stored-functions if you trust that code",
            )
        return stored
    located = user_functions.locate(consent.functions)
    # Check this before any module runs: a module in the dataset's folder may not be the user's own.
    inside = os.path.realpath(root) + os.sep
    for function in located:
        if os.path.realpath(function.path).startswith(inside):
            cause = f"{function.option}: {function.path} is in the dataset's own folder, expected a module of your own"
            raise ConfigError(cause, remedy="run the command from the folder with your own module")
    if [function.option for function in located] != [function.option for function in stored]:
        cause = f"{root}: the functions of this dataset are {_listed(stored)}, but the command has {_listed(located)}"
        raise ConfigError(cause, remedy="give the dataset's functions in the same order, or none if it has none")
    for mine, theirs in zip(located, stored, strict=True):
        if mine.identity() != theirs.identity():
            raise ConfigError(
                f"{mine.option}: {mine.path} differs from the module that the dataset was made with (sha256 "
                f"{mine.digest[:16]}…, expected {theirs.digest[:16]}…)",
                remedy="give the unchanged module; or read its text in the dataset's .prep/*/source.json, and give "
                "--run-stored-functions if you trust that code",
            )
    for function in located:
        user_functions.load(function)
    return located


def source_to_open(stored: str, consent: Consent, *, root: str) -> str:
    """Return the path or address of the source: the user's, or the `stored` one if it is safe. Raises: SourceError."""
    if consent.source:
        return consent.source
    if not os.path.isabs(stored) or "://" in stored:
        raise SourceError(
            f"{root}: the dataset names {stored!r} as its source, which is not on this machine; a remote source is "
            "read only if you name it",
            remedy=f"give --source {stored} if you trust it, or --source with the path of your copy",
        )
    if not _is_plain(stored):
        raise SourceError(
            f"{root}: the dataset names {stored!r} as its source, which leads to something other than plain files and "
            "folders",
            remedy="give --source with the path of the data files",
        )
    return stored


def require_own_addresses(stored: Sequence[str], consent: Consent, *, root: str) -> None:
    """Check that `stored` data files and options name only addresses below the user's --source. Raises: SourceError."""
    prefix = consent.source.rstrip("/") + "/" if consent.source and "://" in consent.source else ""
    for text in stored:
        rest = _MEMBER.sub("", text)
        if "://" in (rest.replace(prefix, "") if prefix else rest):
            raise SourceError(
                f"{root}: the dataset names the address {without_secrets(text)!r}, which is not below --source",
                remedy="if you trust the address, download the files and build the dataset again from them",
            )


def _listed(functions: Sequence[UserFunction]) -> str:
    return ", ".join(function.option for function in functions) or "none"


def _is_plain(path: str) -> bool:
    tops = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
    folders = itertools.chain.from_iterable(map(os.walk, tops))
    below = (os.path.join(folder, name) for folder, _, names in folders for name in names if paths.is_data_file(name))
    return not any(
        f"{real}/".startswith(_NO_DATA)
        or (os.path.exists(real) and not os.path.isfile(real) and not os.path.isdir(real))
        for real in map(os.path.realpath, itertools.chain(tops, below))
    )
