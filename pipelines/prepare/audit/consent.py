"""What a finished dataset may bring about by itself: nothing that runs its code, and nothing that leaves this machine.

    stored in the dataset                     done without a word of the user's
    a function, with its module's text        no: named again (--map, --filter) and found to be the same text in the
                                              user's own modules, or --run-stored-steps
    an address or a hub id of the source      no: named again (--source)
    an absolute path                          yes, if it leads to plain files and folders only: what is read is compared
                                              with the manifest's digests, and shown to nobody but the user

The manifest that names a digest and the text that has it come from the same hand, so that they prove nothing.
"""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Iterator, Sequence

from pipelines.prepare.options import paths
from pipelines.prepare.options.config import FunctionOption
from pipelines.prepare.sources.rows import user_functions
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import ConfigError, SourceError

__all__ = ["NONE", "Consent", "source_to_open", "steps_to_run"]

# Their files count as plain ones, but reading them may do something.
_NO_DATA = ("/proc", "/sys")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consent:
    """What the user has named in this command: the source, its steps, or that stored functions may run."""

    source: str | None = None
    steps: tuple[FunctionOption, ...] = ()
    run_stored: bool = False


NONE = Consent()


def steps_to_run(stored: Sequence[UserFunction], consent: Consent, *, root: str) -> Sequence[UserFunction]:
    """The steps of a dataset as the user has them, or as they are stored if the user says so.

    Raises: ConfigError if there are any, and the user has not named these very ones.
    """
    if not consent.steps:
        if stored and not consent.run_stored:
            raise ConfigError(
                f"{root}: the dataset wants to run functions that are stored in it: {_listed(stored)}; none was run",
                remedy=f"if you have them, name them again: {' '.join(step.option for step in stored)}; or read their "
                "text in the dataset's .prep/*/source.json, and give --run-stored-steps if you trust it",
            )
        return stored
    found = user_functions.locate(consent.steps)
    # Before any of them runs. What lies in the dataset is as little the user's own as what is stored there.
    inside = os.path.realpath(root) + os.sep
    for step in found:
        if os.path.realpath(step.path).startswith(inside):
            raise ConfigError(
                f"{step.option}: {step.path} is in the dataset's own folder, expected a module of your own",
                remedy="run the command from another folder, where your module is",
            )
    _require_same(found, stored, root=root)
    for step in found:
        user_functions.load(step)
    return found


def source_to_open(stored: str, consent: Consent, *, root: str) -> str:
    """What to open as the source. Raises: SourceError if it is to be named by the user."""
    if consent.source:
        return consent.source
    if not os.path.isabs(stored) or "://" in stored:
        raise SourceError(
            f"{root}: says that it was made from {stored!r}, which is not on this machine, and is fetched only if you "
            "name it",
            remedy=f"give --source {stored}, if that is the source, or where you have a copy",
        )
    if not _is_plain(stored):
        raise SourceError(
            f"{root}: says that it was made from {stored!r}, which leads to something else than plain files and "
            "folders",
            remedy="give --source with where the data files are",
        )
    return stored


def _listed(found: Sequence[UserFunction]) -> str:
    return ", ".join(step.option for step in found) or "none"


def _require_same(found: Sequence[UserFunction], stored: Sequence[UserFunction], *, root: str) -> None:
    if [step.option for step in found] != [step.option for step in stored]:
        raise ConfigError(
            f"{root}: was made with the steps {_listed(stored)}, but {_listed(found)} are given",
            remedy="give those of the dataset, in their order, or none if it has none",
        )
    for mine, theirs in zip(found, stored, strict=True):
        if mine.identity() != theirs.identity():
            raise ConfigError(
                f"{mine.option}: {mine.path} has not the text that the dataset was made with (sha256 "
                f"{mine.identity()['module_sha256'][:16]}…, expected {theirs.identity()['module_sha256'][:16]}…)",
                remedy="name the module as it was then; or read its text in the dataset's .prep/*/source.json, and "
                "give --run-stored-steps if you trust it",
            )


def _is_plain(path: str) -> bool:
    """Whether the data files that a path, a folder or a glob leads to are plain files, or not there."""
    found = [path] if os.path.lexists(path) else glob.glob(path, recursive=True)
    return all(map(_is_plain_file, itertools.chain.from_iterable(map(_data_below, found))))


def _data_below(path: str) -> Iterator[str]:
    """What would be opened: `path`, and if it is a folder the data files in it."""
    yield path
    for place, _, names in os.walk(path):
        yield from (os.path.join(place, name) for name in names if paths.kind_of(name))


def _is_plain_file(path: str) -> bool:
    real = os.path.realpath(path)
    if any(real == folder or real.startswith(folder + "/") for folder in _NO_DATA):
        return False
    return os.path.isfile(real) or os.path.isdir(real) or not os.path.exists(real)
