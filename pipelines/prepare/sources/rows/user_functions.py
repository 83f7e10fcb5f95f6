"""The user's own functions: they change rows (`--map`) or leave some out (`--filter`), in the order given.

    rows as they are stored         text                      stars
                                    'Good.<br />Really.'      5
                                    'ok'                      3
    --map clean:without_breaks      'Good. Really.'           5         a Table in, a Table with as many rows out
                                    'ok'                      3
    --filter clean:is_long_enough   True                                a Table in, one bool for each row out
                                    False                               left out, and counted as filtered

A function is called with some rows at a time, never with none, and what it says of a row may depend on that row alone:
how rows come together in a call changes with the machine and the plan.

A function is pinned by its module's text. The text decides the fingerprint, travels in the job and stays beside the
dataset, and what runs is always that text, on the launcher as on workers: it is executed there under a name of its own,
so that neither an edit meanwhile nor another module of the same name comes in between. What stays beside the dataset
runs only if the user says so (`consent`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import FunctionKind, FunctionOption
from tfrecord_io.errors import ConfigError, FormatError, PrepError, SourceError
from tfrecord_io.format.json_fields import mapping, text

__all__ = ["UserFunction", "call", "find", "load", "locate", "restore", "run"]

_SHOWN = 400

_lock = threading.RLock()
_modules: dict[str, types.ModuleType] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A function and the text of the module that defines it; `path` is where that was found, for messages only."""

    kind: FunctionKind
    spec: str
    source: str
    path: str = dataclasses.field(compare=False)

    @property
    def option(self) -> str:
        """As on the command line."""
        return f"--{self.kind} {self.spec}"

    def identity(self) -> dict[str, str]:
        """What the fingerprint and the manifest say of it."""
        return {self.kind: self.spec, "module_sha256": hashlib.sha256(_encoded(self.source)).hexdigest()}

    def to_json(self) -> dict[str, str]:
        """All of it, to be stored beside a dataset."""
        return dataclasses.asdict(self)


class _Module(NamedTuple):
    source: str
    path: str


def find(wanted: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """The functions, each with its module's text as it is now: of a file below the current directory, or else of
    wherever Python finds the module.

    Raises: ConfigError if there is no such module, if it has no source or cannot be executed, or if what is named in
        it is not a function.
    """
    found = locate(wanted)
    for function in found:
        load(function)
    return found


def locate(wanted: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """As `find`, without executing the modules. Raises: ConfigError if there is no such module, or it has no source."""
    found: dict[str, _Module] = {}
    functions = []
    for each in wanted:
        name = each.spec.partition(":")[0]
        if name not in found:
            found[name] = _find_module(name, option=f"--{each.kind} {each.spec}")
        functions.append(UserFunction(kind=each.kind, spec=each.spec, source=found[name].source, path=found[name].path))
    return tuple(functions)


def restore(stored: Any, *, expected: Sequence[Mapping[str, str]], place: str) -> tuple[UserFunction, ...]:
    """The functions that `to_json` gave, if they are the `expected` ones by `identity`. Raises: FormatError."""
    try:
        functions = tuple(map(_restored, stored))
        given = [function.identity() for function in functions]
    except (TypeError, ValueError, PrepError):
        functions, given = (), [{"damaged": ""}]
    if given != [dict(each) for each in expected]:
        raise FormatError(
            f"{place}: has not the functions that the manifest names ({', '.join(_named(each) for each in expected)})",
            remedy="copy .prep/ again from where the dataset was made, or build it anew with --overwrite",
        )
    return functions


def run(functions: Sequence[UserFunction], table: pa.Table, *, place: str) -> tuple[pa.Table, np.ndarray]:
    """What the functions leave of `table`, and which of its rows that are, as indices int64 [n]. `place` names the
    rows.

    Without a row left the functions that follow are not called, and the table has not their columns.

    Raises: as `call`; ConfigError if a function cannot be loaded here.
    """
    kept = np.arange(table.num_rows)
    for function in functions:
        if not len(kept):
            break
        result = call(function, table, place=place)
        if isinstance(result, pa.Table):
            table = result
        elif not result.all():
            table, kept = table.filter(pa.array(result)), kept[result]
    return table, kept


def call(function: UserFunction, table: pa.Table, *, place: str) -> pa.Table | np.ndarray:
    """The table that a map makes of `table`, or what a filter says of each row, bool [n]; null is no.

    Raises: SourceError if the function raises, or gives something else than it is to give.
    """
    callee = load(function)
    try:
        result = callee(table)
    except PrepError:
        raise
    except Exception as error:
        raise SourceError(
            f"{function.option} raised {_described(error)} for {place}{_line(error, function)}",
            remedy="make the function take every row, or leave such rows out by a --filter before it",
        ) from error
    return (_mapped if function.kind == "map" else _mask)(result, function, table, place=place)


def load(function: UserFunction) -> Callable[[pa.Table], Any]:
    """The function. Its module is executed once in each process. Raises: ConfigError if that is not possible."""
    name, _, attribute = function.spec.partition(":")
    with _lock:
        module = _module(function)
    found = getattr(module, attribute, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if isinstance(value, types.FunctionType)]
        raise ConfigError(
            f"{function.option}: {name} has no function {attribute!r} ({function.path})"
            if found is None
            else f"{function.option}: {attribute!r} in {function.path} is {_kind_of(found)}, expected a function",
            remedy=f"choose among {', '.join(sorted(there)) or 'other modules: there is none in this one'}",
        )
    return found


def _find_module(name: str, *, option: str) -> _Module:
    try:
        spec = _below_current_directory(name) or importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec and spec.loader else None  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:  # finding a.b executes a, which may raise anything
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({_described(error)})"
        raise _not_found(name, option=option, cause=cause) from error
    if spec is None:
        raise _not_found(name, option=option, cause="")
    if source is None or not spec.has_location:
        raise ConfigError(
            f"{option}: module {name} has no source text ({spec.origin or 'a folder without __init__.py'}), which is "
            "what pins a function and what workers run",
            remedy="write a function in a Python file that calls it, and name that",
        )
    return _Module(source, str(spec.origin))


def _below_current_directory(name: str) -> importlib.machinery.ModuleSpec | None:
    """The file that `name` is below the current directory, without executing the packages above it."""
    stem = os.path.join(os.getcwd(), *name.split("."))
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(path):
            return importlib.util.spec_from_file_location(name, path)
    return None


def _not_found(name: str, *, option: str, cause: str) -> ConfigError:
    return ConfigError(
        f"{option}: there is no module {name}{cause}, neither below the current directory ({os.getcwd()}) nor where "
        "Python looks",
        remedy="write --map package.module:function, for a file package/module.py below the current directory",
    )


def _unique_name(function: UserFunction) -> str:
    return f"{function.spec.partition(':')[0]}@{function.identity()['module_sha256'][:16]}"


def _module(function: UserFunction) -> types.ModuleType:
    name, unique = function.spec.partition(":")[0], _unique_name(function)
    if (module := _modules.get(unique)) is not None:
        return module
    module = types.ModuleType(unique)
    is_package = os.path.basename(function.path) == "__init__.py"
    module.__file__ = function.path
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # at the end, so that a file there hides no library
    sys.modules[unique] = module  # dataclasses, among others, look for the module of a class there
    try:
        exec(compile(function.source, function.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        place = _line(error, function)
        del sys.modules[unique]
        raise ConfigError(
            f"{function.option}: {function.path} cannot be executed: {_described(error)}{place}",
            remedy="mend the module; on other machines it finds only what is installed there, so keep a function in "
            "one module",
        ) from error
    _modules[unique] = module
    return module


def _mapped(result: Any, function: UserFunction, table: pa.Table, *, place: str) -> pa.Table:
    if not isinstance(result, pa.Table):
        raise SourceError(
            f"{function.option} gave {_kind_of(result)} for {place}, expected a pyarrow.Table",
            remedy="return a table, for example table.set_column(i, name, values); --filter is for masks",
        )
    if result.num_rows != table.num_rows:
        raise SourceError(
            f"{function.option} gave {result.num_rows} rows for {place}, expected {table.num_rows}: as many as it got",
            remedy="use --filter to leave rows out; a function cannot add any",
        )
    if repeated := sorted({name for name in result.column_names if result.column_names.count(name) > 1}):
        raise SourceError(
            f"{function.option} gave several columns named {', '.join(map(repr, repeated))} for {place}",
            remedy="replace a column with table.set_column",
        )
    return result


def _mask(result: Any, function: UserFunction, table: pa.Table, *, place: str) -> np.ndarray:
    if isinstance(result, (pa.Array, pa.ChunkedArray)) and pa.types.is_boolean(result.type):
        mask = np.asarray(result.fill_null(False).to_numpy(**_copying(result)), dtype=bool)
    elif isinstance(result, np.ndarray) and result.dtype == np.bool_ and result.ndim == 1:
        mask = result
    else:
        raise SourceError(
            f"{function.option} gave {_kind_of(result)} for {place}, expected a bool for each row, as an Arrow or "
            "NumPy array",
            remedy="return for example pyarrow.compute.greater(table['n'], 3); --map is for tables",
        )
    if len(mask) != table.num_rows:
        raise SourceError(
            f"{function.option} gave {len(mask)} values for {place}, expected {table.num_rows}: one for each row",
            remedy="return True for rows that are to stay, and False for the others",
        )
    return mask


def _copying(result: pa.Array | pa.ChunkedArray) -> dict[str, bool]:
    return {"zero_copy_only": False} if isinstance(result, pa.Array) else {}


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")


def _described(error: BaseException) -> str:
    """The exception's type and text in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_SHOWN]}" if text else type(error).__name__


def _line(error: BaseException, function: UserFunction) -> str:
    """Where in the module, if it was there."""
    path = sys.modules[_unique_name(function)].__file__  # of the first function with this text
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]} of {os.path.basename(function.path)})" if lines else ""


def _kind_of(value: Any) -> str:
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return f"an Arrow array of {value.type}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype} with {value.ndim} dimensions"
    return "None" if value is None else f"a {type(value).__name__}"


def _restored(entry: Any) -> UserFunction:
    """Raises: TypeError, ValueError or ConfigError if it is none that `to_json` could give."""
    function = UserFunction(**{name: text(value) for name, value in mapping(entry).items()})  # type: ignore[arg-type]
    FunctionOption(kind=function.kind, spec=function.spec)
    return function


def _named(identity: Mapping[str, str]) -> str:
    return next((f"--{kind} {identity[kind]}" for kind in ("map", "filter") if kind in identity), "unknown")
