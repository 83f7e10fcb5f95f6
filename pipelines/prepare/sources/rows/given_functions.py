"""Functions given as objects in Python, rather than by name, as `--map` and `--filter`.

    a function of an imported module       named as package.module:function
    one of a notebook or of a script       its own text, and the imports that it uses, are the module __main__

What is pinned and executed is text in both cases (see `user_functions`), so a function with its own text must not use
other objects of the notebook.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from typing import Any

from pipelines.prepare.options.config import FunctionKind, FunctionOption
from tfrecord_io.errors import ConfigError

__all__ = ["option_of"]

_MODULE = "__main__"
_REMEDY = (
    "write it into a Python file and give the function of that module; or change the Dataset itself, before it is "
    "given, with dataset.map(...) or dataset.filter(...)"
)


def option_of(kind: FunctionKind, function: Any) -> FunctionOption:
    """Return the option that names a function. Raises: ConfigError if it has no name, or no text of its own."""
    if not isinstance(function, types.FunctionType):
        raise ConfigError(
            f"{kind}={function!r:.100}, expected a function or its name",
            remedy=f"define it with def; or write {kind}='package.module:function'",
        )
    name, module = function.__name__, function.__module__
    if module != _MODULE and getattr(sys.modules.get(module), name, None) is function:
        return FunctionOption(kind=kind, spec=f"{module}:{name}")
    return FunctionOption(kind=kind, spec=f"{_MODULE}:{_checked(function, kind)}", source=_text(function, kind))


def _checked(function: types.FunctionType, kind: FunctionKind) -> str:
    name = function.__name__
    used = inspect.getclosurevars(function)
    others = [key for key, value in used.globals.items() if not isinstance(value, types.ModuleType) and key != name]
    if not name.isidentifier():
        raise ConfigError(f"{kind}=: a lambda has no name, expected a function", remedy="define it with def")
    if function.__closure__ or others:
        uses = ", ".join(sorted({*function.__code__.co_freevars, *others}))
        raise ConfigError(
            f"{kind}={name}: it uses {uses}, which is defined outside of it, and only its own text goes to workers",
            remedy=f"define or import that inside of the function; or {_REMEDY}",
        )
    return name


def _text(function: types.FunctionType, kind: FunctionKind) -> str:
    """Return the text of a module with the function and its imports."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{kind}={function.__name__}: its text cannot be found", remedy=_REMEDY) from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise ConfigError(f"{kind}={function.__name__}: not a plain function without decorators", remedy=_REMEDY)
    modules = inspect.getclosurevars(function).globals
    imports = [
        f"import {value.__name__} as {name}\n"
        for name, value in sorted(modules.items())
        if isinstance(value, types.ModuleType)
    ]
    # Types of arguments may name modules that the function does not use otherwise.
    return "".join(["from __future__ import annotations\n", *imports, "\n", text])
