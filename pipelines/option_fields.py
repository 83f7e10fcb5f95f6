"""Declare options as fields of a frozen dataclass.

    max_length: int | None = option("Tokens in a row.", None, group="Layout", metavar="N", least=1)

One field defines a command-line option, its --help text, its key in the options file, its keyword in Python, its checks
and its fingerprint entry. A tuple as default makes it repeatable.
"""

import dataclasses
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tfrecord_io.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """Declaration of an option, with its field.

    text, metavar: its line in --help-all. group: the title above that line.
    brief: its line in --help, if it is a common option.
    flags: its spellings, if not from the field's name: `--on/--off`, or several separated by spaces.
    choices: the allowed words, if the type is not a Literal.
    parse: converts the typed value. typed_default: the default before that.
    least, most, above, below: bounds of a number. remedy: what to do about a number outside them.
    taken_with: values of another option that allow this one; empty if all do.
    fingerprint: "always" if the fingerprint contains the value; "changed" if it does only for values other than the
        default; None if the option does not affect bytes, or other parts of the fingerprint cover it.
    key: its name in the fingerprint, if not the field's name.
    kind: the type of the value.
    """

    text: str
    brief: str = ""
    group: str = ""
    metavar: str | None = None
    flags: str = ""
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], Any] | None = None
    typed_default: Any = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    remedy: str = ""
    taken_with: tuple[str, ...] = ()
    fingerprint: Literal["always", "changed"] | None = None
    key: str = ""
    field: str = ""
    kind: type = str
    default: Any = None

    @property
    def spellings(self) -> list[str]:
        """Spellings, such as `--shuffle/--no-shuffle`, the main one first."""
        return (self.flags or "--" + self.field.replace("_", "-")).split()

    @property
    def flag(self) -> str:
        """Main spelling, such as `--max-length`."""
        return self.spellings[0].partition("/")[0]

    @property
    def name(self) -> str:
        """Main spelling as a Python keyword argument, such as `max_length`."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_repeatable(self) -> bool:
        return isinstance(self.default, tuple)


def option(text: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Declare a dataclass field as an option. `text`: its help. `more`: other fields of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(text=text, **more)})


@functools.cache
def declared(config: Any) -> tuple[Option, ...]:
    """Return a dataclass's options, in the order of its fields."""
    hints = get_type_hints(config)
    options = []
    for field in dataclasses.fields(config):
        if (rule := field.metadata.get("option")) is not None:
            kind, words = _kind(hints[field.name])
            default = None if field.default is dataclasses.MISSING else field.default
            facts = {"field": field.name, "kind": kind, "default": default, "choices": rule.choices or words}
            options.append(dataclasses.replace(rule, **facts))
    return tuple(options)


def _kind(hint: Any) -> tuple[type, tuple[str, ...]]:
    # type of a hint, or of a union's first member, and a Literal's words
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if (first := members[0]) in (bool, int, float):
        return first, ()
    return str, get_args(first) if get_origin(first) is Literal else ()


def check(config: Any) -> None:
    """Raise ConfigError if a value of the dataclass `config` is outside its option's bounds or allowed words."""
    for option in declared(config.__class__):
        value = getattr(config, option.field)
        values = value if option.is_repeatable else () if value is None else (value,)
        if option.choices and (wrong := [word for word in values if word not in option.choices]):
            cause = f"{option.flag} {wrong[0]!r}, expected one of {', '.join(option.choices)}"
            raise ConfigError(cause, remedy="choose one of them")
        for number in values if option.kind in (int, float) else ():
            if expected := _missed(number, option):
                shown = "of 10^18 or more" if isinstance(number, int) and number >= 10**18 else number
                remedy = option.remedy or f"choose another number, or leave {option.flag} out"
                raise ConfigError(f"{option.flag} {shown}, expected {expected}", remedy=remedy)


def require_taken(config: Any, flag: str, word: str) -> None:
    """Raise ConfigError if an option that does not work with the value `word` of `flag` differs from its default."""
    for option in declared(config.__class__):
        if option.taken_with and word not in option.taken_with and getattr(config, option.field) != option.default:
            expected = " or ".join(option.taken_with)
            cause = f"{option.flag} was given with {flag} {word}, but works only with {flag} {expected}"
            raise ConfigError(cause, remedy=f"leave {option.flag} out, or choose {flag} {option.taken_with[0]}")


def _missed(number: Any, option: Option) -> str:
    if option.kind is int and (not isinstance(number, int) or isinstance(number, bool)):
        return "a whole number"
    if option.kind is float and not math.isfinite(number):
        return "a finite number"
    bounds = (
        ("at least", option.least, operator.ge),
        ("more than", option.above, operator.gt),
        ("at most", option.most, operator.le),
        ("less than", option.below, operator.lt),
    )
    missed = (f"{words} {bound}" for words, bound, holds in bounds if bound is not None and not holds(number, bound))
    return next(missed, "")


def fingerprint_items(config: Any) -> dict[str, Any]:
    """Return the values of the options of `config` that belong to a dataset's fingerprint, by name."""
    items = {}
    for option in declared(config.__class__):
        value, covered = getattr(config, option.field), option.fingerprint
        if covered == "always" or (covered == "changed" and value != option.default):
            items[option.key or option.field] = list(value) if isinstance(value, tuple) else value
    return items


def values_of(config: type, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a command's parameters to values for fields of the dataclass `config`. Options not given are left out."""
    values = {}
    for option in declared(config):
        if (value := typed.get(option.name)) not in (None, ()):
            values[option.field] = option.parse(value) if option.parse else value
    return values
