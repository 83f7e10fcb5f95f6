"""Compiling a chat template so that what it does is charged to a meter.

    {% for m in messages %} … {% endfor %}       step(…) as the first statement of each turn
    {{ x }}                                      {{ put(x) }}, by the environment's `finalize`
    {% set x = a + b %}, a ~ b, [a, b], a[1:]    made(a + b), put(a) ~ put(b), made([a, b]), copied(a[1:])
    a * b, a ** b, a % b, f(x), x | f            by the sandbox's own hooks, or functions in place of the filters

All else is compiled as it is: comparisons, tests, subscripts and most filters make nothing that is longer than what
they are given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Macro
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pipelines.prepare.tokenize.chat.limits import LINEAR_METHODS, Meter, words

__all__ = ["compile_metered"]

# No template can write these names, but for `map('…')`, with which nothing is won.
_STEP, _PUT, _MADE, _COPIED = "meter: step", "meter: put", "meter: made", "meter: copied"
# Sums of fewer terms are measured where they go.
_TERMS = 8
# These make no more than they are given, or than an estimate of theirs would allow.
_PLAIN_FILTERS = words(
    "abs attr count d default filesizeformat first float int items last length random reject rejectattr reverse safe "
    "select selectattr trim truncate"
)
_LETTERS = words("capitalize casefold e encode escape forceescape lower swapcase title upper urlencode wordcount")
_SORTING_FILTERS = ("dictsort", "groupby", "max", "min", "sort", "unique")
_ADDED = ("_loop_vars", "_block_vars")
_VALUES = (str, bytes, bytearray, int, float, list, tuple, dict, set, frozenset, range)


def compile_metered(source: str, environment: jinja2.Environment) -> tuple[jinja2.Template, Meter]:
    """The template, and what its renderings are charged to. The environment is changed: it is for this template alone.

    Raises: jinja2.TemplateSyntaxError, or what Python says of a template that is too deep.
    """
    meter = Meter(no_value=Namespace)
    _hook(environment, meter)
    tree = _Metering().visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.from_string(tree), meter


def _hook(environment: Any, meter: Meter) -> None:
    binops = environment.binop_table

    def call_binop(context: Any, operator: str, left: Any, right: Any) -> Any:
        del context
        meter.operate(operator, left, right)
        return binops[operator](left, right)

    environment.intercepted_binops = frozenset({"*", "**", "%"})
    environment.call_binop = call_binop
    environment.call = _metered_call(environment.call, meter)
    environment.finalize = meter.put
    # Text of any length, and another one each time.
    environment.globals.pop("lipsum", None)
    for name, function in list(environment.filters.items()):
        environment.filters[name] = _metered_filter(name, function, meter)
    environment.filters |= {_STEP: meter.step, _PUT: meter.put, _MADE: meter.made, _COPIED: meter.copied}


def _metered_call(call: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    estimates: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), meter.pad),
        **dict.fromkeys(("split", "rsplit"), meter.split),
        **dict.fromkeys(("format", "format_map"), meter.format),
        "join": meter.join,
        "replace": meter.replace,
    }

    def metered(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if type(function) is Macro:
            meter.call()
            return call(context, function, *args, **kwargs)
        # The sandbox wraps `str.format`.
        method = getattr(function, "__wrapped__", function)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if not isinstance(owner, _VALUES):
            # A function of the environment or an extension, or a loop or block that calls itself.
            meter.call()
            result = call(context, function, *args, **kwargs)
            if isinstance(result, Namespace):
                meter.make(meter.size([args, {name: kwargs[name] for name in kwargs if name not in _ADDED}]))
            return meter.made(result) if isinstance(result, dict) else result
        if name in _LETTERS:
            meter.letters(owner)
        else:
            meter.step()
        # What Jinja adds is for functions with a mark, and so is what the sandbox looks for: methods have none.
        for added in _ADDED:
            kwargs.pop(added, None)
        if name in LINEAR_METHODS and method is function:
            return function(*args, **kwargs)
        if name == "join" and args:
            args = (list(args[0]), *args[1:])
        estimates.get(name, meter.unknown)(owner, *args, **kwargs)
        return call(context, function, *args, **kwargs)

    return metered


def _metered_filter(name: str, function: Any, meter: Meter) -> Any:
    """The filter, which charges the meter before it begins."""
    if name in _PLAIN_FILTERS:
        return function
    estimate = _estimates(meter).get(name, meter.unknown)
    # Jinja gives some of them its context, or another object of its own, first.
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        if name != "map" and _is_lazy(args[at]):
            args = (*args[:at], list(args[at]), *args[at + 1 :])
        estimate(*args[at:], **kwargs)
        result = function(*args, **kwargs)
        return meter.each(result) if _is_lazy(result) else result

    return metered


def _estimates(meter: Meter) -> dict[str, Callable[..., Any]]:
    """What is charged before a filter."""

    def step(*args: Any, **kwargs: Any) -> None:
        meter.step()

    return {
        **dict.fromkeys(_LETTERS, meter.letters),
        **dict.fromkeys(_SORTING_FILTERS, lambda values, *args, **kwargs: meter.copied(values)),
        **dict.fromkeys(
            ("batch", "slice"), lambda values, *args, **kwargs: meter.unknown(len(values), *args, **kwargs)
        ),
        "center": meter.pad,
        "format": meter.printf,
        "indent": meter.indent,
        "join": lambda values, separator="", *args, **kwargs: meter.join(kwargs.get("d", separator), values),
        "list": meter.split,
        "map": step,
        "replace": meter.replace,
        "string": lambda value: meter.put(value) and None,
        "sum": lambda values, attribute=None, *start, **named: (
            meter.unknown(values, *start, **named) if start or named.keys() - {"attribute"} else meter.step()
        ),
        "tojson": meter.to_json,
    }


def _is_lazy(value: Any) -> bool:
    return hasattr(value, "__next__")


class _Metering(NodeTransformer):
    """Puts calls of the meter into a template's tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_step(literal)).set_lineno(node.lineno))
        if node.test is not None:
            node.test = nodes.And(_step(0), node.test).set_lineno(node.lineno)
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        self.generic_visit(node)
        # A namespace in a namespace would be a value that nobody measured.
        node.node = _filter(node.node, _MADE) if isinstance(node.target, nodes.NSRef) else _made(node.node)
        return node

    def visit_With(self, node: nodes.With) -> nodes.With:
        self.generic_visit(node)
        node.values = [_made(value) for value in node.values]
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.defaults = [_made(default) for default in node.defaults]
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.defaults = [_made(default) for default in node.defaults]
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:
        self.generic_visit(node)
        node.args = [_made(argument) for argument in node.args]
        for pair in node.kwargs:
            pair.value = _made(pair.value)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(node, _MADE) if _terms(node) >= _TERMS else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        node.nodes = [each if isinstance(each, nodes.Const) else _filter(each, _PUT) for each in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(node, _COPIED) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._container(node, node.items)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._container(node, [pair.value for pair in node.items])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self._container(node, node.items) if node.ctx == "load" else node

    def _container(self, node: nodes.Expr, values: list[nodes.Expr]) -> nodes.Expr:
        if all(isinstance(value, nodes.Const) for value in values):
            return node
        self.generic_visit(node)
        return _filter(node, _MADE)


def _made(node: Any) -> Any:
    """The expression, measured if there is a sum in it, which may be longer than its terms."""
    sums = (nodes.Add, nodes.Concat)
    return _filter(node, _MADE) if isinstance(node, sums) or node.find(sums) else node


def _terms(node: nodes.Expr) -> int:
    """The terms of a sum that are not measured together already."""
    return _terms(node.left) + _terms(node.right) if isinstance(node, nodes.Add) else 1


def _step(literal: int) -> nodes.Filter:
    # Without the context it would be a constant, worked out when the template is compiled.
    return nodes.Filter(nodes.ContextReference(), _STEP, [nodes.Const(literal)], [], None, None)


def _filter(node: Any, name: str) -> Any:
    return nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)
