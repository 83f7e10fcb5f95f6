"""The user's consent to run code, or contact addresses, stored in a dataset.

    stored in the dataset                     used without consent?
    a function, with its module's text        no: the user must name it again (--map, --filter), in a module of their
                                              own with the same text, or give --run-stored-functions
    an address or a hub id of the source      no: the user must name it again (--source)
    an address in --data-files or an option   no: unless it lies below the user's --source address
    an absolute path                          yes, if it leads only to plain files and folders: their content is
                                              compared with the manifest's digests, and shown only to the user

A digest in the manifest does not make stored text trustworthy: both have the same author.
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

# Member of an archive.
_MEMBER = re.compile(r"\b(zip|tar|gzip|bz2|xz|lz4|zstd)://[^:]*::")
# Their files look like plain ones, but reading them may have effects.
_NO_DATA = ("/proc", "/sys")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consent:
    """The source and functions that the user named, and whether stored functions may run."""

    source: str | None = None
    functions: tuple[FunctionOption, ...] = ()
    run_stored: bool = False


NONE = Consent()


def steps_to_run(stored: Sequence[UserFunction], consent: Consent, *, root: str) -> Sequence[UserFunction]:
    """Return the functions to run on a dataset's rows: the user's, or the stored ones if the user consents.

    Raises: ConfigError if the user has named none of the dataset's functions, or others.
    """
    if not consent.functions:
        if stored and not consent.run_stored:
            raise ConfigError(
                f"{root}: the dataset wants to run functions that are stored in it: {_listed(stored)}; none was run",
                remedy=f"if you have them, name them again: {' '.join(each.option for each in stored)}; or read their "
                "text in the dataset's .prep/*/source.json, and give --run-stored-functions if you trust it",
            )
        return stored
    found = user_functions.locate(consent.functions)
    # Check this before any module runs: a module in the dataset's folder is not the user's either.
    inside = os.path.realpath(root) + os.sep
    for function in found:
        if os.path.realpath(function.path).startswith(inside):
            raise ConfigError(
                f"{function.option}: {function.path} is in the dataset's own folder, expected a module of your own",
                remedy="run the command from another folder, where your module is",
            )
    if [function.option for function in found] != [function.option for function in stored]:
        raise ConfigError(
            f"{root}: was made with the functions {_listed(stored)}, but {_listed(found)} are given",
            remedy="give the dataset's functions in their order, or none if it has none",
        )
    for mine, theirs in zip(found, stored, strict=True):
        if mine.identity() != theirs.identity():
            raise ConfigError(
                f"{mine.option}: {mine.path} differs from the text that the dataset was made with (sha256 "
                f"{mine.digest[:16]}…, expected {theirs.digest[:16]}…)",
                remedy="name the module as it was then; or read its text in the dataset's .prep/*/source.json, and "
                "give --run-stored-functions if you trust it",
            )
    for function in found:
        user_functions.load(function)
    return found


def source_to_open(stored: str, consent: Consent, *, root: str) -> str:
    """Return the path or address of the source to open. Raises: SourceError if the user must name it."""
    if consent.source:
        return consent.source
    if not os.path.isabs(stored) or "://" in stored:
        raise SourceError(
            f"{root}: says that it was made from {stored!r}, which is not on this machine and is fetched only if you "
            "name it",
            remedy=f"give --source {stored}, if that is the source, or where you have a copy",
        )
    if not _is_plain(stored):
        raise SourceError(
            f"{root}: says that it was made from {stored!r}, which leads to something other than plain files "
            "and folders",
            remedy="give --source with the path of the data files",
        )
    return stored


def require_own_addresses(stored: Sequence[str], consent: Consent, *, root: str) -> None:
    """Check that stored data files and options name no address outside the user's --source. Raises: SourceError."""
    named = consent.source.rstrip("/") + "/" if consent.source and "://" in consent.source else None
    for text in stored:
        rest = _MEMBER.sub("", text)
        if "://" in (rest.replace(named, "") if named else rest):
            raise SourceError(
                f"{root}: says that it was made from {without_secrets(text)!r}, an address that is not below --source",
                remedy="download those files, and build the dataset again from them, if you trust it",
            )


def _listed(found: Sequence[UserFunction]) -> str:
    return ", ".join(function.option for function in found) or "none"


def _is_plain(path: str) -> bool:
    """Return whether a path, folder or glob leads only to plain data files outside /proc and /sys."""
    found = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
    below = (
        os.path.join(folder, name)
        for each in found
        for folder, _, names in os.walk(each)
        for name in names
        if paths.is_data_file(name)
    )
    for real in map(os.path.realpath, itertools.chain(found, below)):
        if any(real == folder or real.startswith(folder + "/") for folder in _NO_DATA):
            return False
        if os.path.exists(real) and not os.path.isfile(real) and not os.path.isdir(real):
            return False
    return True
