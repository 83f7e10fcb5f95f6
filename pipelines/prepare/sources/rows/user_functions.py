"""User functions: they change rows (`--map`) or leave some out (`--filter`), in the order of the command line.

    rows as they are stored         text                      stars
                                    'Good.<br />Really.'      5
                                    'ok'                      3
    --map clean:without_breaks      'Good. Really.'           5         a Table in, a Table with as many rows out
                                    'ok'                      3
    --filter clean:is_long_enough   True                                a Table in, one bool for each row out
                                    False                               left out, and counted as filtered

A function is called with one or more rows at a time (see `function_calls`). Its result for a row may depend on that row
alone, since the machine and the plan decide which rows come together in a call.

A function is pinned by the text of its module, which is part of the fingerprint, travels in the job, is stored beside
the dataset, and is what is executed. Stored functions run only if the user consents (`consent`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.prepare.options.config import FunctionKind, FunctionOption
from pipelines.prepare.options.source_config import CalledFunction
from tfrecord_io.errors import ConfigError, FormatError, PrepError
from tfrecord_io.format.json_fields import mapping, text
from tfrecord_io.format.ledger import FILTERED

__all__ = ["UserFunction", "describe_error", "locate", "restore"]

_MOST_CHARACTERS = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A function and the text of its module (`source`); `path` is the module's file, for messages only."""

    kind: FunctionKind
    spec: str
    source: str
    path: str = dataclasses.field(compare=False)

    @property
    def called(self) -> CalledFunction:
        """Its module, name and arguments."""
        return CalledFunction.of(self.spec)

    @property
    def reason(self) -> str:
        """Why rows are left out that it does not keep, as the ledger counts them: ready filters by name."""
        return f"{FILTERED}:{self.called.name}" if self.called.is_ready else FILTERED

    @property
    def option(self) -> str:
        """The option as on the command line."""
        return f"--{self.kind} {self.spec}"

    def identity(self) -> dict[str, str]:
        """Return the function's entry in the fingerprint and the manifest."""
        return {self.kind: self.spec, "module_sha256": hashlib.sha256(_encoded(self.source)).hexdigest()}

    def to_json(self) -> dict[str, str]:
        """Return all fields, as they are stored beside a dataset."""
        return dataclasses.asdict(self)


class _Module(NamedTuple):
    source: str
    path: str


def locate(options: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """Read the modules of the functions, without executing them.

    A module is a file below the current directory, or else wherever Python finds it.

    Raises: ConfigError if there is no such module, or it has no source text.
    """
    modules: dict[str, _Module] = {}
    functions = []
    for each in options:
        name = CalledFunction.of(each.spec).module
        if each.source is not None:
            functions.append(UserFunction(kind=each.kind, spec=each.spec, source=each.source, path="<notebook>"))
            continue
        if name not in modules:
            modules[name] = _find_module(name, option=f"--{each.kind} {each.spec}")
        source, path = modules[name]
        functions.append(UserFunction(kind=each.kind, spec=each.spec, source=source, path=path))
    return tuple(functions)


def restore(stored: Any, *, expected: Sequence[Mapping[str, str]], where: str) -> tuple[UserFunction, ...]:
    """Parse functions stored by `to_json`. Raises: FormatError if their identities are not the `expected` ones."""
    try:
        functions = tuple(map(_restored, stored))
        identities = [function.identity() for function in functions]
    except (TypeError, ValueError, PrepError):
        functions, identities = (), [{"damaged": ""}]
    if identities != [dict(each) for each in expected]:
        raise FormatError(
            f"{where}: lacks the functions that the manifest names ({', '.join(_option(each) for each in expected)})",
            remedy="copy .prep/ again from where the dataset was made, or build it anew with --overwrite",
        )
    return functions


def _find_module(name: str, *, option: str) -> _Module:
    try:
        spec = _below_current_directory(name) or importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec and spec.loader else None  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:  # finding a.b executes a, which may raise anything
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({describe_error(error)})"
        raise _not_found(name, option=option, cause=cause) from error
    if spec is None:
        raise _not_found(name, option=option, cause="")
    if source is None or not spec.has_location:
        raise ConfigError(
            f"{option}: module {name} has no source text ({spec.origin or 'a folder without __init__.py'}), which "
            "workers need to run the function",
            remedy="write a function in a Python file that calls it, and name that function",
        )
    return _Module(source, str(spec.origin))


def _below_current_directory(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find the file of a module below the current directory, without executing its parent packages."""
    stem = os.path.join(os.getcwd(), *name.split("."))
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(path):
            return importlib.util.spec_from_file_location(name, path)
    return None


def _not_found(name: str, *, option: str, cause: str) -> ConfigError:
    return ConfigError(
        f"{option}: there is no module {name}{cause}, neither below the current directory ({os.getcwd()}) nor on "
        "Python's search path",
        remedy="write --map package.module:function for a file package/module.py below the current directory",
    )


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")


def describe_error(error: BaseException) -> str:
    """Return the type and text of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MOST_CHARACTERS]}" if text else type(error).__name__


def _restored(entry: Any) -> UserFunction:
    """Parse one stored function. Raises: TypeError, ValueError or ConfigError if it is malformed."""
    function = UserFunction(**{name: text(value) for name, value in mapping(entry).items()})  # type: ignore[arg-type]
    FunctionOption(kind=function.kind, spec=function.spec)
    return function


def _option(identity: Mapping[str, str]) -> str:
    return next((f"--{kind} {identity[kind]}" for kind in ("map", "filter") if kind in identity), "unknown")
