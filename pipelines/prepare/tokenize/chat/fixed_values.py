"""Values that chat templates write as the same text on every machine.

A function's text contains a memory address, and a set's order depends on the hash seed. So callables and iterators get
wrappers that cannot be written as text, and sets of keys keep their order.
"""

import calendar
import collections.abc
import datetime
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jinja2.utils
from jinja2 import TemplateError, Undefined
from jinja2.runtime import LoopContext, Macro

_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple})
# Directives of `strftime` with the same text on every machine, and those that a dash shortens.
_DIRECTIVES = frozenset("aAbBcdDeFfGhHIjmMpSTuUVwWxXyY%")
_PADDED = frozenset("deHIjmMSUVWy")


class _Silent:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> NoReturn:
        _refuse_text(type(self._value).__name__)


class _Callable(_Silent):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return fixed(self._value(*args, **kwargs))


class _Iterator(_Silent):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._value)


class _OrderedKeys(collections.abc.KeysView[Any]):
    @classmethod
    def _from_iterable(cls, values: Iterable[Any]) -> "_OrderedKeys":  # type: ignore[override]
        return cls(dict.fromkeys(values))

    def __repr__(self) -> NoReturn:
        _refuse_text("set")


class Cycler(jinja2.utils.Cycler):
    """Jinja's `cycler`, except that writing it as text raises TemplateError."""

    def __repr__(self) -> NoReturn:
        _refuse_text("cycler")


def _refuse_text(kind: str) -> NoReturn:
    raise TemplateError(f"the chat template writes a {kind} as text, which would differ between runs")


def fixed(value: Any) -> Any:
    """Return a value as it is, or for a callable or an iterator, a wrapper that raises if written as text."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, (_Silent, Cycler, Undefined, Macro, LoopContext)):
        return value
    if hasattr(kind, "__next__"):
        return _Iterator(value)
    return _Callable(value) if callable(value) else value


def fixed_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a Jinja filter so that `fixed` is applied to its results."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(function(*args, **kwargs))

    return call


def difference(left: Any, right: Any) -> Any:
    """Return left - right. If one operand is a set, the result keeps the order of `left`."""
    if isinstance(left, collections.abc.Set) or isinstance(right, collections.abc.Set):
        return _OrderedKeys(dict.fromkeys(left)) - right
    return left - right


def format_date(day: datetime.date, form: str) -> str:
    """Format midnight of `day` like `strftime` in the C locale. A dash, as in `%-d`, omits leading zeros and spaces.

    Raises: TemplateError for a directive that depends on the time zone or the machine.
    """

    def written(directive: re.Match[str]) -> str:
        dash, name = directive.groups()
        if name not in (_PADDED if dash else _DIRECTIVES):
            raise TemplateError(
                f"the chat template writes the date with {directive[0]!r}, which differs between machines; "
                f"expected % with one of {' '.join(sorted(_DIRECTIVES))}"
            )
        text = datetime.datetime.combine(day, datetime.time()).strftime(f"%{name}")
        return (text.lstrip("0 ") or "0") if dash else text

    with calendar.different_locale(("C", None)):
        return re.sub(r"%(-?)(.?)", written, form, flags=re.DOTALL)
