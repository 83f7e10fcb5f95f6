"""What one rendering may spend: a chat template comes with a tokenizer, from strangers, and may loop without an end.

Limits are counts, not seconds: a row is rejected on every machine or on none.

    one value      MOST_CHARS characters when it is written, of a list all that is in it
    the text       MOST_CHARS characters; what goes through a macro or a block counts there too
    the work       MOST_WORK units, of a nanosecond or two: a character made is one; a turn of a loop is STEP, or the
                   32nd part of the longest value made so far, which may be copied or searched there; a call is more

What makes more than its arguments hold is estimated beforehand. A function of which nothing is known takes arguments
of MOST_UNKNOWN together, a number counting as what it says. `metering` compiles a template so that it is charged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

__all__ = ["LINEAR_METHODS", "MOST_CHARS", "MOST_UNKNOWN", "MOST_WORK", "Meter", "OverLimit", "words"]

MOST_CHARS = 1 << 24
MOST_WORK = 1 << 30
MOST_UNKNOWN = 1 << 14
STEP = 1 << 8
# Of a list's element, beyond what the element holds.
_SLOT = 8
# Joining is cheaper than making; a call of a macro takes as long as some turns of a loop, and a look at a part of a
# value longer than one; changing a letter takes longer than copying it.
_JOINED, _CALL, _LOOK, _LETTER = 8, 16, 512, 32
_LONG = 1 << 16
_MOST_BITS = 1 << 14
_CONVERSION = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")


def words(names: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(names.split())


# What these give is hardly longer than the text that they are called on.
LINEAR_METHODS = words(
    "strip lstrip rstrip splitlines partition rpartition startswith endswith removeprefix removesuffix upper lower "
    "title capitalize casefold swapcase find rfind index rindex count isalnum isalpha isascii isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper encode decode get items keys values "
    "copy"
)


class OverLimit(Exception):
    """A rendering would take more than it may."""


class Meter:
    """What is left of one rendering after another; `start` begins the next one. All of it raises `OverLimit`."""

    __slots__ = ("_no_value", "_room", "_turn", "_work")

    def __init__(self, *, no_value: type) -> None:
        """Objects of the class `no_value` are changed after they were measured, and must not be in other values."""
        self._no_value = no_value
        self.start()

    def start(self) -> None:
        """Gives the next rendering all that one may spend."""
        self._work = MOST_WORK
        self._room = MOST_CHARS
        self._turn = STEP

    def step(self, context: Any = None, literal: int = 0) -> bool:
        """A call, or a turn of a loop that puts so many characters of the template itself. Returns True."""
        del context
        self._work -= self._turn
        self._room -= abs(literal)
        if self._work < 0 or self._room < 0:
            self._stop()
        return True

    def put(self, value: Any) -> Any:
        """The value as it is put into the text, or joined to others."""
        if type(value) is str:
            self._room -= len(value)
        else:
            value = value if isinstance(value, str) else str(self._writable(value))
            self._room -= str.__len__(value)
        if self._room < 0:
            self._stop()
        return value

    def made(self, value: Any) -> Any:
        """The value, which was just made. Lists that hold one another many times say more than they take."""
        if type(value) is str and len(value) < _LONG:
            self._work -= len(value)
        else:
            self.make(self.size(value))
        return value

    def copied(self, value: Any) -> Any:
        """The value, which is a part of another one."""
        if isinstance(value, (str, bytes, list, tuple)):
            self.make(_length(value))
        return value

    def call(self) -> None:
        """A call of the template's own functions, which may join what was put so far once more."""
        self._work -= _CALL * self._turn + (MOST_CHARS - self._room) // _JOINED
        if self._work < 0:
            self._stop()

    def letters(self, text: Any, *args: Any, **named: Any) -> None:
        """A change of every letter of a text, such as to upper case."""
        del args, named
        self.step()
        if isinstance(text, (str, bytes)) and _length(text) > _LONG:
            self._work -= _LETTER * _length(text)
            self.step()

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """The values, which are made one after the other and may all be kept."""
        kept = 0
        for value in values:
            kept += _SLOT + self.size(value)
            self.step()
            self._expect(kept)
            yield value

    def make(self, size: int) -> None:
        """A value of this size was made, or is about to be."""
        self._expect(size)
        self._work -= size
        self._turn = max(self._turn, size >> 5)
        if self._work < 0:
            self._stop()

    def size(self, value: Any, depth: int = 1) -> int:
        """About the characters of the value when it is written, with one character a level of indentation."""
        if isinstance(value, (str, bytes)):
            return _length(value) + depth
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            self._writable(value)
            return depth + (value.bit_length() if isinstance(value, int) else _SLOT)
        self._work -= _LOOK * (1 + len(value))
        if self._work < 0:
            self._stop()
        if isinstance(value, Mapping):
            return depth + sum(self.size(each, depth + 1) for pair in value.items() for each in pair)
        return depth + sum(self.size(each, depth + 1) for each in value)

    # Estimates of what operators, methods and filters make, with their arguments.

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """`left * right`, `left ** right` or `left % right`."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
            if operator != "%" and bits > _MOST_BITS:
                raise OverLimit(f"a number of more than {_MOST_BITS:,} bits")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(many, float):
                    size = _length(many) if isinstance(many, (str, bytes)) else self.size(many)
                    self.make(size * max(times, 0))
        elif operator == "%" and isinstance(left, (str, bytes)):
            self.printf(left, right)

    def printf(self, form: Any, *values: Any, **named: Any) -> None:
        """`form % values`: each of its places may take all of them."""
        form = form.decode("latin-1") if isinstance(form, bytes) else str(form)
        places = _CONVERSION.findall(form)
        if any("*" in place for place in places):
            raise OverLimit("a width that is itself an argument")
        widths = sum(_number(number) for place in places for number in place)
        self.make(widths + len(form) + len(places) * self.size([*values, named]))

    def format(self, form: str, *values: Any, **named: Any) -> None:
        """`form.format(*values, **named)`."""
        form = str(form)
        if re.search(r"\{[^{}]*\{", form.replace("{{", "")):
            raise OverLimit("a width that is itself an argument")
        widths = sum(map(_number, re.findall(r"\d+", form)))
        self.make(widths + len(form) + form.count("{") * self.size([*values, named]))

    def replace(self, text: Any, old: Any, new: Any, *count: Any, **named: Any) -> None:
        """`text.replace(old, new)`."""
        del count, named
        self.step()
        if not all(isinstance(each, str) for each in (text, old, new)):
            self.unknown(text, old, new)
        elif (grows := _length(new) - _length(old)) > 0:
            self.make(_length(text) + str.count(text, old) * grows)

    def split(self, text: Any, separator: Any = None, *most: Any, **named: Any) -> None:
        """`text.split(separator)`, or a list of its characters."""
        del most, named
        self.step()
        if isinstance(text, (str, bytes)) and _length(text) > _LONG:
            pieces = str.count(text, separator) if isinstance(text, str) and separator else _length(text)
            self.make(_length(text) + _SLOT * pieces)

    def pad(self, text: Any, width: Any = 80, *fill: Any, **named: Any) -> None:
        """`text.center(width)` and its like."""
        self.make(self.size([text, *fill]) + _magnitude(named.get("width", width)))

    def join(self, separator: Any, values: Any) -> None:
        """`separator.join(values)`."""
        self.make(self.size(values) + len(values) * self.size(separator))

    def indent(self, text: Any, width: Any = 4, *flags: Any, **named: Any) -> None:
        """`text | indent(width)`."""
        del flags
        width = named.get("width", width)
        lines = str.count(text, "\n") + 1 if isinstance(text, str) else 1
        self.make(self.size(text) + lines * (_length(width) if isinstance(width, str) else _magnitude(width)))

    def to_json(self, value: Any, *others: Any, **named: Any) -> None:
        """`value | tojson(indent=…)`."""
        self.step()
        factor = 1
        for each in (*others, *named.values()):
            for part in each if isinstance(each, (list, tuple)) else (each,):
                factor *= max(_length(part) if isinstance(part, str) else _magnitude(part), 1)
        if factor > 1:
            self.make(self.size(value) * factor)

    def unknown(self, *values: Any, **named: Any) -> None:
        """A function of which nothing is known."""
        every = [*values, *named.values()]
        size = sum(_magnitude(each) if isinstance(each, (int, float)) else self.size(each) for each in every)
        if size > MOST_UNKNOWN:
            raise OverLimit(f"use of a rare function with arguments of more than {MOST_UNKNOWN:,} characters")
        self._work -= size * size
        self.step()

    def _writable(self, value: Any) -> Any:
        if isinstance(value, self._no_value):
            raise OverLimit("a namespace a part of a text or of another value")
        return value

    def _expect(self, size: int) -> None:
        if size > MOST_CHARS:
            raise OverLimit(f"a value of more than {MOST_CHARS:,} characters")

    def _stop(self) -> NoReturn:
        if self._room < 0:
            raise OverLimit(f"a text of more than {MOST_CHARS:,} characters")
        raise OverLimit(f"more than {MOST_WORK // STEP:,} turns of loops, or as much work")


def _length(text: Any) -> int:
    """Also of strings that watch what is done to them."""
    return str.__len__(text) if isinstance(text, str) else len(text)


def _magnitude(value: Any) -> int:
    if isinstance(value, float):
        return abs(int(value)) if abs(value) < MOST_CHARS else MOST_CHARS
    return abs(value) if isinstance(value, int) else 1


def _number(digits: str) -> int:
    return min(int(digits[:12] or 0), MOST_CHARS + 1)
