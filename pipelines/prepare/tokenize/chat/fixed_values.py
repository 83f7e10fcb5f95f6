"""Values that chat templates write as the same text on every machine.

Python's text for a function contains a memory address, and the order of a set depends on the hash seed. So callables
and iterators get wrappers that cannot be written as text, and sets of keys keep their order.
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
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# The directives of `strftime`, in the C locale and for midnight.
_DIRECTIVES: dict[str, Callable[[datetime.date], str]] = {
    "a": lambda day: _DAYS[day.weekday()][:3],
    "A": lambda day: _DAYS[day.weekday()],
    "b": lambda day: _MONTHS[day.month - 1][:3],
    "B": lambda day: _MONTHS[day.month - 1],
    "c": lambda day: format_date(day, "%a %b %e %H:%M:%S %Y"),
    "d": lambda day: f"{day.day:02}",
    "D": lambda day: format_date(day, "%m/%d/%y"),
    "e": lambda day: f"{day.day:2}",
    "f": lambda _: "000000",
    "F": lambda day: format_date(day, "%Y-%m-%d"),
    "G": lambda day: f"{day.isocalendar()[0]}",
    "h": lambda day: format_date(day, "%b"),
    "H": lambda _: "00",
    "I": lambda _: "12",
    "j": lambda day: f"{day.timetuple().tm_yday:03}",
    "m": lambda day: f"{day.month:02}",
    "M": lambda _: "00",
    "p": lambda _: "AM",
    "S": lambda _: "00",
    "T": lambda _: "00:00:00",
    "u": lambda day: f"{day.isoweekday()}",
    "U": lambda day: f"{_week(day, first=calendar.SUNDAY):02}",
    "V": lambda day: f"{day.isocalendar()[1]:02}",
    "w": lambda day: f"{day.isoweekday() % 7}",
    "W": lambda day: f"{_week(day, first=calendar.MONDAY):02}",
    "x": lambda day: format_date(day, "%m/%d/%y"),
    "X": lambda _: "00:00:00",
    "y": lambda day: f"{day.year % 100:02}",
    "Y": lambda day: f"{day.year}",
    "%": lambda _: "%",
}
_PADDED = frozenset("dejmUVWy")


class _Silent:
    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> NoReturn:
        _refuse_text(type(self._value).__name__)


class _Callable(_Silent):
    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return fixed(self._value(*args, **kwargs))


class _Iterator(_Silent):
    __slots__ = ()

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


class Dict:
    """Replacement for the type `dict` without the methods through which a template could change messages."""

    fromkeys = staticmethod(dict.fromkeys)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def __repr__(self) -> NoReturn:
        _refuse_text("type")


class Cycler(jinja2.utils.Cycler):
    """Jinja's `cycler`, which cannot be written as text."""

    def __repr__(self) -> NoReturn:
        _refuse_text("cycler")


def _refuse_text(kind: str) -> NoReturn:
    raise TemplateError(f"the chat template writes a {kind}, which has no fixed text")


def fixed(value: Any) -> Any:
    """Return the value; for a callable or an iterator, return a wrapper that raises if it is written as text."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, (_Silent, Cycler, Dict, Undefined, Macro, LoopContext)):
        return value
    if hasattr(kind, "__next__"):
        return _Iterator(value)
    return _Callable(value) if callable(value) else value


def fixed_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Jinja filter that applies `fixed` to the results of `function`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fixed(function(*args, **kwargs))

    return call


def difference(left: Any, right: Any) -> Any:
    """Return left - right. A difference of sets keeps the order of `left`."""
    if isinstance(left, collections.abc.Set) or isinstance(right, collections.abc.Set):
        return _OrderedKeys(dict.fromkeys(left)) - right
    return left - right


def format_date(day: datetime.date, form: str) -> str:
    """Format midnight of `day` like `strftime` in the C locale. A dash, as in `%-d`, omits leading zeros and spaces.

    Raises: TemplateError for a directive that depends on the clock, time zone or machine.
    """

    def written(directive: re.Match[str]) -> str:
        dash, name = directive.groups()
        if name not in _DIRECTIVES or (dash and name not in _PADDED | set("HIMS")):
            raise TemplateError(
                f"the chat template writes the date with {directive[0]!r}, which differs between machines; "
                f"expected % with one of {' '.join(_DIRECTIVES)}"
            )
        text = _DIRECTIVES[name](day)
        return (text.lstrip("0 ") or "0") if dash else text

    return re.sub(r"%(-?)(.?)", written, form, flags=re.DOTALL)


def _week(day: datetime.date, *, first: int) -> int:
    return (day.timetuple().tm_yday + 6 - (day.weekday() - first) % 7) // 7
