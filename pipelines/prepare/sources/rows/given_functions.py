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
from collections.abc import Mapping
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
    if not isinstance(function, types.FunctionType) or not function.__name__.isidentifier():
        raise ConfigError(
            f"{kind}={function!r:.100}, expected a function with a name, or its name",
            remedy=f"define it with def; or write {kind}='package.module:function'",
        )
    name, module = function.__name__, function.__module__
    if module != _MODULE and getattr(sys.modules.get(module), name, None) is function:
        return FunctionOption(kind=kind, spec=f"{module}:{name}")
    used = inspect.getclosurevars(function).globals
    others = [key for key, value in used.items() if not isinstance(value, types.ModuleType) and key != name]
    if uses := sorted({*function.__code__.co_freevars, *others}):
        raise ConfigError(
            f"{kind}={name}: it uses {', '.join(uses)}, which is defined outside of it, and only its own text goes to "
            "workers",
            remedy=f"define or import that inside of the function; or {_REMEDY}",
        )
    return FunctionOption(kind=kind, spec=f"{_MODULE}:{name}", source=_text(function, used))


def _text(function: types.FunctionType, used: Mapping[str, Any]) -> str:
    """Return the text of a module with the function, and the modules that it uses. Raises: ConfigError."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{function.__name__}: its text cannot be found", remedy=_REMEDY) from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise ConfigError(f"{function.__name__}: not a plain function without decorators", remedy=_REMEDY)
    imports = [
        f"import {each.__name__} as {name}\n"
        for name, each in sorted(used.items())
        if isinstance(each, types.ModuleType)
    ]
    # Types of arguments may name modules that the function does not use otherwise.
    return "".join(["from __future__ import annotations\n", *imports, "\n", text])
