"""Load and call user functions in command-line order: maps change rows (`--map`), filters drop some (`--filter`).

A map returns a table with as many rows as it gets, a filter returns one bool per row. The result for a row must depend
only on that row, because the machine and the plan determine which rows a call receives.

A ready function (in `pipelines.filters`) is identified by its version, others by their module's text, which is executed
under a unique name.
"""

import ast
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import textwrap
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines import filters
from pipelines.prepare.options.config import FunctionKind, FunctionOption
from pipelines.prepare.options.source_config import CalledFunction
from tfrecord_io.errors import ConfigError, FormatError, PrepError, SourceError
from tfrecord_io.format.json_fields import WRONG, decoded
from tfrecord_io.manifest import FILTERED
from tfrecord_io.shown import some, without_secrets

_OTHERWISE = (
    "write it into a Python file, and pass the function of that module; or change the Dataset itself beforehand, with "
    "dataset.map(...) or dataset.filter(...)"
)
_lock = threading.RLock()
_modules: dict[str, types.ModuleType] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserFunction:
    """User function of --map or --filter. `spec`: the option's value. `source`, `path`: text and file of its module."""

    kind: FunctionKind
    spec: str
    source: str
    path: str = dataclasses.field(compare=False)

    @property
    def called(self) -> CalledFunction:
        return CalledFunction.of(self.spec)

    @property
    def reason(self) -> str:
        """Reason in the ledger for rows that this filter drops, such as `filtered:language`."""
        return f"{FILTERED}:{self.called.name}" if self.called.is_ready else FILTERED

    @property
    def option(self) -> str:
        return f"--{self.kind} {self.spec}"

    def identity(self) -> dict[str, str]:
        """Return the entry in fingerprint and manifest. Raises: ConfigError if a needed package is not installed."""
        if self.called.is_ready:
            return {self.kind: self.spec, "version": filters.version(self.called.name)}
        return {self.kind: self.spec, "module_sha256": self.digest}

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()


def locate(options: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """Return the functions that the options name. Their modules are read, but not executed.

    Raises: ConfigError if there is no source text, or an argument looks like a credential.
    """
    for option in options:
        if without_secrets(option.spec) != option.spec:
            raise ConfigError(
                f"--{option.kind} {option.spec.partition('(')[0]}: an argument looks like a credential, but arguments "
                "are stored with the dataset",
                remedy="let the function read the credential from an environment variable",
            )
    located = ((option, *_read_module(option)) for option in options)
    return tuple(
        UserFunction(kind=option.kind, spec=option.spec, source=text, path=path) for option, text, path in located
    )


def restore(stored: Any, *, expected: Sequence[Mapping[str, str]], where: str) -> tuple[UserFunction, ...]:
    """Return the functions in `stored`, a list of JSON objects from the file `where`.

    Raises: FormatError unless they have the identities `expected`; ConfigError if only a version differs.
    """
    try:
        functions: tuple[UserFunction, ...] = decoded(tuple[UserFunction, ...], stored)
        for function in functions:
            FunctionOption(kind=function.kind, spec=function.spec)
        identities = [function.identity() for function in functions]
        mine, theirs = ([{**entry, "version": ""} for entry in entries] for entries in (identities, expected))
        is_right = mine == theirs and list(map(dataclasses.asdict, functions)) == stored
    except (*WRONG, PrepError):
        is_right = False
    if not is_right:
        kinds = ("map", "filter")
        named = ", ".join(f"--{kind} {entry[kind]}" for entry in expected for kind in kinds if kind in entry)
        raise FormatError(
            f"{where}: does not have the functions that the manifest names ({named})",
            remedy="copy .prep/ again from where the dataset was made, or build it again with --overwrite",
        )
    for function, here, there in zip(functions, identities, expected, strict=True):
        if here != there:
            raise ConfigError(
                f"{where}: {function.option} has version {here.get('version')} here, expected {there.get('version')}",
                remedy="install the versions that the dataset was made with",
            )
    return functions


def find(options: Sequence[FunctionOption]) -> tuple[UserFunction, ...]:
    """Return the functions of options; load them, to check them. Raises: ConfigError."""
    functions = locate(options)
    for function in functions:
        load(function)
    return functions


def option_of(kind: FunctionKind, function: Any) -> FunctionOption:
    """Return the option that names a Python function, or contains its text if it is not in an importable module.

    Raises: ConfigError if the function has no name or source text, or uses names defined outside of it.
    """
    if not isinstance(function, types.FunctionType) or not function.__name__.isidentifier():
        raise ConfigError(
            f"{kind}={function!r:.100}, expected a function with a name, or its name",
            remedy=f"define the function with def; or write {kind}='package.module:function'",
        )
    name, module = function.__name__, function.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is function:
        return FunctionOption(kind=kind, spec=f"{module}:{name}")
    used = inspect.getclosurevars(function).globals
    others = [key for key, value in used.items() if not isinstance(value, types.ModuleType) and key != name]
    if uses := sorted({*function.__code__.co_freevars, *others}):
        raise ConfigError(
            f"{kind}={name}: the function uses names defined outside of it ({', '.join(uses)}), but only its "
            "own text goes to workers",
            remedy=f"define or import them inside the function; or {_OTHERWISE}",
        )
    return FunctionOption(kind=kind, spec=f"__main__:{name}", source=_text_of(function, used))


def _text_of(function: types.FunctionType, used: Mapping[str, Any]) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{function.__name__}: its source text cannot be found", remedy=_OTHERWISE) from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise ConfigError(f"{function.__name__}: expected a plain function without decorators", remedy=_OTHERWISE)
    imports = [
        f"import {module.__name__} as {name}\n"
        for name, module in sorted(used.items())
        if isinstance(module, types.ModuleType)
    ]
    # Annotations may name modules that the function doesn't use otherwise.
    return "".join(["from __future__ import annotations\n", *imports, "\n", text])


def call(function: UserFunction, table: pa.Table, *, where: str) -> pa.Table | np.ndarray:
    """Call a function on n rows; return the table of a map, or the mask of a filter, bool [n], with False for null.

    `where`: description of the rows, for messages. Raises: SourceError.
    """
    callee = load(function)
    try:
        result = callee(table)
    except PrepError:
        raise
    except Exception as error:
        raise SourceError(
            f"{function.option} raised {_described(error)} for {where}{_line(error, function)}",
            remedy="make the function work for every row, or leave such rows out with a --filter before it",
        ) from error
    if function.kind == "map":
        is_right, expected = isinstance(result, pa.Table), "a pyarrow.Table; --filter is for masks"
    else:
        if isinstance(result, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(result.type):
            result = np.asarray(result.fill_null(False), dtype=bool)
        is_right = isinstance(result, np.ndarray) and result.dtype == np.bool_ and result.ndim == 1
        expected = "a bool for each row, as an Arrow or NumPy array; --map is for tables"
    if not is_right:
        items = getattr(result, "dtype", getattr(result, "type", None))
        raise SourceError(
            f"{function.option} returned an object of type {type(result).__name__}{f' of {items}' if items else ''} "
            f"for {where}, expected {expected}",
            remedy="return for example table.set_column(i, name, values), or a mask such as "
            "pyarrow.compute.greater(table['n'], 3)",
        )
    if len(result) != table.num_rows:
        raise SourceError(
            f"{function.option} returned {some(len(result), 'row')} for {where}, expected {table.num_rows:,}, as many "
            "as it got",
            remedy="let a filter return False for rows to leave out; a function cannot add rows",
        )
    if isinstance(result, pa.Table) and len(set(result.column_names)) < result.num_columns:
        raise SourceError(
            f"{function.option} returned columns of the same name for {where}: {', '.join(result.column_names)}",
            remedy="replace a column with table.set_column",
        )
    return result


def load(function: UserFunction) -> Callable[[pa.Table], Any]:
    """Return the Python function; execute its module once per process. Raises: ConfigError."""
    name, attribute, arguments, keywords = function.called
    with _lock:
        module = _module(function)
    value = getattr(module, attribute, None)
    if not callable(value):
        functions = [key for key, member in vars(module).items() if isinstance(member, types.FunctionType)]
        raise ConfigError(
            f"{function.option}: {name} has no function {attribute!r} ({function.path})",
            remedy=f"choose among {', '.join(sorted(functions)) or 'other modules: this one has no functions'}",
        )
    return lambda table: value(table, *arguments, **keywords)


def _read_module(option: FunctionOption) -> tuple[str, str]:
    if option.source is not None:
        return option.source, "<notebook>"
    if CalledFunction.of(option.spec).is_ready:
        return "", str(filters.__file__)
    name = CalledFunction.of(option.spec).module
    try:
        # A file in the current directory is found without executing its parent packages.
        stem = os.path.join(os.getcwd(), *name.split("."))
        path = next(filter(os.path.isfile, (f"{stem}.py", os.path.join(stem, "__init__.py"))), None)
        spec = importlib.util.spec_from_file_location(name, path) if path else importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        source = spec.loader.get_source(name) if spec.loader else None  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:  # finding a.b executes a, which may raise any error
        raise ConfigError(
            f"--{option.kind} {option.spec}: there is no module {name} ({_described(error)}), neither below the "
            f"current directory ({os.getcwd()}) nor on Python's search path",
            remedy="write --map package.module:function for a file package/module.py below the current directory",
        ) from error
    if source is None or not spec.has_location:
        raise ConfigError(
            f"--{option.kind} {option.spec}: module {name} has no source text, which workers need to run the function",
            remedy="write a function in a Python file that calls it, and name that function",
        )
    return source, str(spec.origin)


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def _unique_name(function: UserFunction) -> str:
    return f"{function.called.module}@{function.digest[:16]}"


def _module(function: UserFunction) -> types.ModuleType:
    if function.called.is_ready:
        return filters
    name, unique = function.called.module, _unique_name(function)
    if (module := _modules.get(unique)) is not None:
        return module
    module = types.ModuleType(unique)
    is_package = os.path.basename(function.path) == "__init__.py"
    module.__file__ = function.path
    module.__package__ = name if is_package else name.rpartition(".")[0]
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)  # last, so that no file hides a library
    sys.modules[unique] = module  # dataclasses look up a class's module here
    try:
        exec(compile(function.source, function.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        line = _line(error, function)
        del sys.modules[unique]
        raise ConfigError(
            f"{function.option}: {function.path} cannot be executed: {_described(error)}{line}",
            remedy="correct the module; on other machines it can import only installed packages, so keep the function "
            "and its helpers in one module",
        ) from error
    _modules[unique] = module
    return module


def _line(error: BaseException, function: UserFunction) -> str:
    module = filters if function.called.is_ready else sys.modules[_unique_name(function)]
    path = module.__file__  # the first path with this text
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]} of {os.path.basename(function.path)})" if lines else ""
