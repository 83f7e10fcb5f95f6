"""Validate the JSON files of a dataset, which may be untrusted.

Functions raise ValueError for an invalid value, KeyError for a missing field; `WRONG` has both.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import json
import math
import re
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

# Parts of file names. Separators and a leading dot ('..', hidden files) are not allowed.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,254}\Z")
FINGERPRINT = re.compile(r"[0-9a-f]{1,128}\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")

_WORDS = {
    NAME: "a plain file name of letters, digits, '_', '-', '+' and '.' that begins with one of the first three",
    FINGERPRINT: "1 to 128 hex digits",
    SHA256: "64 hex digits",
}

MOST = 2**63 - 1
_MOST_DEPTH = 50

WRONG = (KeyError, ValueError)


def load(content: bytes | str) -> Any:
    """Parse JSON. Raises: ValueError if it is invalid, has NaN or infinity, or is nested over 50 levels deep."""

    def finite(digits: str) -> float:
        if math.isfinite(number := float(digits)):
            return number
        raise ValueError(f"{digits:.30} is not a finite number")

    try:
        document = json.loads(content, parse_constant=finite, parse_float=finite)
    except RecursionError as error:
        raise ValueError(f"lists and objects are nested more than {_MOST_DEPTH} levels deep") from error
    level = [document] if has_nested([document]) else []
    for _ in range(_MOST_DEPTH + 1):
        if not level:
            return document
        inner = [value.values() if type(value) is dict else value for value in level]
        level = [value for values in inner if has_nested(values) for value in values if type(value) in (dict, list)]
    raise ValueError(f"lists and objects are nested more than {_MOST_DEPTH} levels deep")


def has_nested(values: Iterable[Any]) -> bool:
    """Return whether any of the values is a list, tuple or dict."""
    return not {dict, list, tuple}.isdisjoint(map(type, values))


def mapping(value: Any) -> dict[str, Any]:
    return _require(value, dict, "an object")


def items(value: Any) -> list[Any]:
    return _require(value, list, "a list")


def text(value: Any, pattern: re.Pattern[str] | None = None) -> str:
    """Return `value`. Raises: ValueError if it is not a string of valid Unicode that matches the pattern, if any."""
    string: str = _require(value, str, "a string")
    string.encode()  # raises for a lone surrogate
    if pattern is not None and not pattern.match(string):
        raise ValueError(f"{string!r:.100}, expected {_WORDS[pattern]}")
    return string


def count(value: Any, *, most: int = MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{_shown(value)}, expected a whole number from 0 to {most}")
    return value


def integer(value: Any) -> int:
    return count(value) if type(value) is not int or value >= 0 else -count(-value)


def counts(value: Any) -> list[int]:
    numbers = items(value)
    is_right = set(map(type, numbers)) <= {int} and min(numbers, default=0) >= 0 and max(numbers, default=0) <= MOST
    return numbers if is_right else list(map(count, numbers))  # raises for the first invalid number


def texts(value: Any, pattern: re.Pattern[str]) -> list[str]:
    strings = items(value)
    is_right = set(map(type, strings)) <= {str} and all(map(pattern.match, strings))
    return strings if is_right else [text(string, pattern) for string in strings]


def flag(value: Any) -> bool:
    return bool(_require(value, bool, "true or false"))


def one_of(value: Any, *allowed: str) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{_shown(value)}, expected one of {allowed}")
    return value


def optional(read: Any, value: Any, **arguments: Any) -> Any:
    return None if value is None else read(value, **arguments)


Count = Annotated[int, count]
Name = Annotated[str, functools.partial(text, pattern=NAME)]
Fingerprint = Annotated[str, functools.partial(text, pattern=FINGERPRINT)]
Sha256 = Annotated[str, functools.partial(text, pattern=SHA256)]
Counts = Annotated[list[int], counts]
Names = Annotated[list[str], functools.partial(texts, pattern=NAME)]
Sha256s = Annotated[list[str], functools.partial(texts, pattern=SHA256)]

ABSENT = {"json": "absent"}


def decoded(hint: Any, value: Any) -> Any:
    """Convert a value of parsed JSON to type `hint`, such as `tuple[str, ...]` or a dataclass.

    `Annotated[type, read]` calls `read(value)`. Only a dataclass's fields with metadata `ABSENT` may be missing.
    """
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return arguments[1](value)
    if kind is Literal:
        return one_of(value, *arguments)
    if kind in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        *kinds, last = [kind for kind in arguments if kind is not type(None)]
        for kind in kinds:
            with contextlib.suppress(*WRONG):
                return decoded(kind, value)
        return decoded(last, value)
    if kind is tuple:
        return tuple(decoded(arguments[0], item) for item in items(value))
    if kind in (dict, collections.abc.Mapping):
        return {decoded(arguments[0], name): decoded(arguments[1], item) for name, item in mapping(value).items()}
    if dataclasses.is_dataclass(hint):
        fields = mapping(value)
        known = {field.name: field.metadata == ABSENT for field in dataclasses.fields(hint)}
        names = [name for name, may_be_absent in known.items() if name in fields or not may_be_absent]
        if nulls := [name for name in names if known[name] and fields[name] is None]:
            raise ValueError(f"{nulls[0]} is null, expected a value; leave the field out if there is none")
        return hint(**object_of(hint, {name: fields[name] for name in names}, names))  # type: ignore[operator]
    readers: dict[Any, Any] = {int: integer, str: text, bool: flag}
    if hint not in readers and isinstance(hint, type) and type(value) is not hint:
        raise ValueError(f"{_shown(value)}, expected a {hint.__name__}")
    return readers[hint](value) if hint in readers else value


def checked(value: Any, needed: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a JSON object unchanged, after checking the types of its `needed` and, if present, `others` fields."""
    fields = mapping(value)
    for name, hint in {**needed, **(others or {})}.items():
        if name in needed or name in fields:
            decoded(hint, fields[name])
    return fields


def object_of(kind: Any, document: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Convert the fields `names` of a JSON object to their types in dataclass `kind`. Missing ones are left out."""
    hints = _hints(kind)
    return {name: decoded(hints[name], document[name]) for name in names if name in document}


@functools.lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _require(value: Any, kind: type, expected: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{_shown(value)}, expected {expected}")
    return value


def _shown(value: Any) -> str:
    return f"{value!r:.100}" if not isinstance(value, list | dict) else f"a {type(value).__name__}"
