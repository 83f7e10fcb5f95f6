"""Calling user functions on tables of rows, with errors that name the function, the rows and the line.

What runs is the module's text in the UserFunction, on the launcher as on workers. It is executed under a name of its
own, so that neither a later edit nor another module of the same name takes its place.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import FunctionOption
from pipelines.prepare.sources.rows.user_functions import UserFunction, describe_error, locate
from tfrecord_io.errors import ConfigError, PrepError, SourceError

__all__ = ["call", "find", "load", "run"]

_lock = threading.RLock()
_modules: dict[str, types.ModuleType] = {}


def find(options: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """Locate the functions, and load each once to see that it can be run.

    Raises: ConfigError if there is no such module, it has no source text or cannot be executed, or it has no such
        function.
    """
    functions = locate(options)
    for function in functions:
        load(function)
    return functions


def run(functions: Sequence[UserFunction], table: pa.Table, *, where: str) -> tuple[pa.Table, np.ndarray]:
    """Apply the functions to `table`; return the rows left, and why each row of `table` is left out, object [n], or ''.

    `where` names the rows in messages. Once no row is left, further functions are not called, and the result lacks
    their columns.

    Raises: as `call`; ConfigError if a function cannot be loaded.
    """
    kept, reasons = np.arange(table.num_rows), np.full(table.num_rows, "", object)
    for function in functions:
        if not len(kept):
            break
        result = call(function, table, where=where)
        if isinstance(result, pa.Table):
            table = result
        elif not result.all():
            reasons[kept[~result]] = function.reason
            table, kept = table.filter(pa.array(result)), kept[result]
    return table, reasons


def call(function: UserFunction, table: pa.Table, *, where: str) -> pa.Table | np.ndarray:
    """Call a function: return the table that a map makes of `table`, or the mask of a filter, bool [n], null as False.

    Raises: SourceError if the function raises, or returns something of the wrong type or size.
    """
    callee = load(function)
    try:
        result = callee(table)
    except PrepError:
        raise
    except Exception as error:
        raise SourceError(
            f"{function.option} raised {describe_error(error)} for {where}{_line(error, function)}",
            remedy="make the function take every row, or leave such rows out by a --filter before it",
        ) from error
    return (_check_table if function.kind == "map" else _check_mask)(result, function, table, where=where)


def load(function: UserFunction) -> Callable[[pa.Table], Any]:
    """Return the function itself, executing its module once per process. Raises: ConfigError if that fails."""
    name, attribute, arguments, keywords = function.called
    with _lock:
        module = _module(function)
    value = getattr(module, attribute, None)
    if not callable(value):
        functions = [key for key, each in vars(module).items() if isinstance(each, types.FunctionType)]
        raise ConfigError(
            f"{function.option}: {name} has no function {attribute!r} ({function.path})"
            if value is None
            else f"{function.option}: {attribute!r} in {function.path} is {_type_name(value)}, expected a function",
            remedy=f"choose among {', '.join(sorted(functions)) or 'other modules: this one has no functions'}",
        )
    return lambda table: value(table, *arguments, **keywords)


def _unique_name(function: UserFunction) -> str:
    return f"{function.called.module}@{function.identity()['module_sha256'][:16]}"


def _module(function: UserFunction) -> types.ModuleType:
    name, unique = function.called.module, _unique_name(function)
    if (module := _modules.get(unique)) is not None:
        return module
    module = types.ModuleType(unique)
    is_package = os.path.basename(function.path) == "__init__.py"
    module.__file__ = function.path
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # at the end, so that a file there hides no library
    sys.modules[unique] = module  # dataclasses and others look up the module of a class there
    try:
        exec(compile(function.source, function.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        line = _line(error, function)
        del sys.modules[unique]
        raise ConfigError(
            f"{function.option}: {function.path} cannot be executed: {describe_error(error)}{line}",
            remedy="correct the module; on other machines it can import only what is installed there, so keep a "
            "function in one module",
        ) from error
    _modules[unique] = module
    return module


def _check_table(result: Any, function: UserFunction, table: pa.Table, *, where: str) -> pa.Table:
    if not isinstance(result, pa.Table):
        raise SourceError(
            f"{function.option} returned {_type_name(result)} for {where}, expected a pyarrow.Table",
            remedy="return a table, for example table.set_column(i, name, values); --filter is for masks",
        )
    if result.num_rows != table.num_rows:
        raise SourceError(
            f"{function.option} returned {result.num_rows} rows for {where}, expected {table.num_rows}, as many as it "
            "got",
            remedy="use --filter to leave rows out; a function cannot add rows",
        )
    if repeated := sorted({name for name in result.column_names if result.column_names.count(name) > 1}):
        raise SourceError(
            f"{function.option} returned several columns named {', '.join(map(repr, repeated))} for {where}",
            remedy="replace a column with table.set_column",
        )
    return result


def _check_mask(result: Any, function: UserFunction, table: pa.Table, *, where: str) -> np.ndarray:
    if isinstance(result, (pa.Array, pa.ChunkedArray)) and pa.types.is_boolean(result.type):
        mask = np.asarray(result.fill_null(False).to_numpy(**_copying(result)), dtype=bool)
    elif isinstance(result, np.ndarray) and result.dtype == np.bool_ and result.ndim == 1:
        mask = result
    else:
        raise SourceError(
            f"{function.option} returned {_type_name(result)} for {where}, expected a bool for each row, as an Arrow "
            "or NumPy array",
            remedy="return for example pyarrow.compute.greater(table['n'], 3); --map is for tables",
        )
    if len(mask) != table.num_rows:
        raise SourceError(
            f"{function.option} returned {len(mask)} values for {where}, expected {table.num_rows}, one for each row",
            remedy="return True for rows to keep, and False for the others",
        )
    return mask


def _copying(result: pa.Array | pa.ChunkedArray) -> dict[str, bool]:
    return {"zero_copy_only": False} if isinstance(result, pa.Array) else {}


def _line(error: BaseException, function: UserFunction) -> str:
    """Name the line of the module at which an error was raised, if it was raised in the module."""
    path = sys.modules[_unique_name(function)].__file__  # that of the first function with the same text
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]} of {os.path.basename(function.path)})" if lines else ""


def _type_name(value: Any) -> str:
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return f"an Arrow array of {value.type}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype} with {value.ndim} dimensions"
    return "None" if value is None else f"a {type(value).__name__}"
