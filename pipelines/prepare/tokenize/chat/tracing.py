"""Finding out what a chat template does with the contents of messages: it is run on strings that watch it.

    {{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}

run on a message whose content is a `Traced` string gives

    <|im_start|>user⏎{0 without white space at both ends}<|im_end|>⏎

where {…} is a `mark`, two characters that stand in no text with a number between them. What the template does to a
content is then either one of these, or it is untraceable:

    puts it somewhere, any number of times, alone or joined to something else
    takes white space off its ends
    asks whether it is empty                            it is not: blank contents are left to the template
    asks whether it contains, begins with, is … "x"     no; contents that do contain an "x" are left to the template
    takes certain characters off its ends               it has none there; contents that do are left to the template

so that a text can be put together from the answer for any other contents. A filter written in C may read a traced
string unnoticed (`tojson` does); the mark goes through it all the same, and what comes out is compared with the
template on contents made to differ there (`skeletons`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["MARK", "MARK_LETTERS", "Trace", "Traced", "Untraceable", "mark"]

# Noncharacters of Unicode, which no text has: between them a message's number, and the ends that are stripped.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
MARK = re.compile(f"{_OPEN}(\\d+)([lrb]?){_CLOSE}")
MARK_LETTERS = frozenset((_OPEN, _CLOSE))
_STRIPPED = {(False, False): "", (True, False): "l", (False, True): "r", (True, True): "b"}


def mark(message: int, *, left: bool = False, right: bool = False) -> str:
    """What stands for a message's content, with white space at its ends or without."""
    return f"{_OPEN}{message}{_STRIPPED[left, right]}{_CLOSE}"


class Untraceable(Exception):
    """The template does something with a content that does not follow from the content's place."""


class Trace:
    """What one run of a template assumes: that no content contains one of the `needles`, or has one of the characters
    `edges` (ASCII) at its ends. `broken` is set once there is something that cannot be followed, for templates that go
    on after an exception.
    """

    def __init__(self) -> None:
        self.needles: set[str] = set()
        self.edges: set[str] = set()
        self.broken = False

    def content(self, message: int) -> Traced:
        """A string in place of a message's content."""
        return Traced._of([(message, False, False)], self)

    def give_up(self) -> NoReturn:
        """Raises: Untraceable."""
        self.broken = True
        raise Untraceable

    def assume_without(self, needle: object) -> None:
        """No content contains this. Raises: Untraceable if it is no string, or one that each content contains."""
        if type(needle) is not str or not needle:
            self.give_up()
        self.needles.add(needle)

    def assume_no_edge(self, chars: str) -> None:
        """No content begins or ends with one of these. Raises: Untraceable if one is not ASCII."""
        if not chars.isascii():
            self.give_up()
        self.edges.update(chars)


class Traced(str):
    """Text with contents in it. `_parts` are strings and, for contents, (message, stripped left, stripped right)."""

    _parts: list[Any]
    _trace: Trace

    @classmethod
    def _of(cls, parts: list[Any], trace: Trace) -> Traced:
        shown = (part if isinstance(part, str) else mark(part[0], left=part[1], right=part[2]) for part in parts)
        traced = super().__new__(cls, "".join(shown))
        traced._parts, traced._trace = parts, trace
        return traced

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return self._of([*self._parts, *_parts_of(other)], self._trace)

    def __radd__(self, other: str) -> str:
        return self._of([*_parts_of(other), *self._parts], self._trace)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        # Being asked whether it could be iterated is fine: this gives up at the first step.
        return iter(self._trace.give_up, None)

    def strip(self, chars: str | None = None) -> str:
        return self._stripped(chars, left=True, right=True)

    def lstrip(self, chars: str | None = None) -> str:
        return self._stripped(chars, left=True, right=False)

    def rstrip(self, chars: str | None = None) -> str:
        return self._stripped(chars, left=False, right=True)

    def __contains__(self, needle: object) -> bool:
        return self._has(needle)

    def __eq__(self, other: object) -> bool:
        return other != "" and self._has(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self._trace.give_up()

    def startswith(self, prefix: Any, *places: Any) -> bool:
        return self._has_any(prefix, places)

    def endswith(self, suffix: Any, *places: Any) -> bool:
        return self._has_any(suffix, places)

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        self._has(sep)
        return [self]

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        self._has(sep)
        return [self]

    def replace(self, old: str, new: str, count: Any = -1) -> str:
        self._has(old)
        return self

    def _has_any(self, needle: Any, places: tuple[Any, ...]) -> bool:
        if places:
            self._trace.give_up()
        return any(self._has(each) for each in (needle if isinstance(needle, tuple) else (needle,)))

    def _has(self, needle: object) -> bool:
        """Whether it contains the needle, which only a content alone can be assumed not to."""
        if len(self._parts) != 1:
            self._trace.give_up()
        self._trace.assume_without(needle)
        return False

    def _stripped(self, chars: str | None, *, left: bool, right: bool) -> str:
        if chars is not None:
            self._trace.assume_no_edge(chars)
        parts = list(self._parts)
        if left:
            parts = _strip_first(parts, "l", chars, self._trace)
        if right:
            parts = _strip_first(parts[::-1], "r", chars, self._trace)[::-1]
        return self._of(parts, self._trace)


def _parts_of(text: str) -> list[Any]:
    return text._parts if isinstance(text, Traced) else [text]


def _strip_first(parts: list[Any], side: str, chars: str | None, trace: Trace) -> list[Any]:
    """Strips the outer side of the first part; a text of which nothing is left goes away, and the next one is first. A
    content never goes away, and is as it is where certain `chars` are stripped: it is assumed to have none there.

    Raises: Untraceable if white space was taken off before: what stood behind it is not known.
    """
    while parts and isinstance(parts[0], str):
        rest = parts[0].lstrip(chars) if side == "l" else parts[0].rstrip(chars)
        if rest:
            return [rest, *parts[1:]]
        parts = parts[1:]
    if not parts:
        return parts
    message, left, right = parts[0]
    if chars is not None:
        if (left if side == "l" else right) and not chars.isspace():
            trace.give_up()
        return parts
    return [(message, left or side == "l", right or side == "r"), *parts[1:]]


def _forbid(name: str) -> Any:
    def forbidden(self: Traced, *args: Any, **kwargs: Any) -> NoReturn:
        self._trace.give_up()

    forbidden.__name__ = name
    return forbidden


# Whatever else a string can do is not followed.
_HARMLESS = {
    "__class__", "__delattr__", "__dir__", "__doc__", "__getattribute__", "__getnewargs__", "__init__",
    "__init_subclass__", "__new__", "__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__sizeof__", "__str__",
    "__subclasshook__", "maketrans",
}  # fmt: skip
for _name in set(dir(str)) - _HARMLESS - vars(Traced).keys():
    setattr(Traced, _name, _forbid(_name))
