"""Options declared once, as fields of a frozen dataclass.

    max_length: int | None = option("Tokens in a row.", None, group="Layout", metavar="N", least=1)

This field defines the command line, its --help, the options file, Python's keywords, the checks and the fingerprint. A
tuple as default makes it repeatable.
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

    text, metavar, group: its line in --help-all, and the title above it.
    brief: its line in --help, for common options.
    flags: its spellings, if not from the field's name: `--on/--off`, or several separated by spaces.
    choices: the allowed words, if the type is no Literal.
    parse: converts the typed value; `typed_default` is the default before this conversion.
    least, most, above, below, remedy: a number's bounds, and the remedy outside them.
    taken_with: the words of another option that allow this option; empty for all.
    fingerprint: "always" part of it, or only if "changed" from the default; None if it
        affects no bytes, or other parts cover its effect.
    key: its name in the fingerprint, if not the field's name.
    field, kind, default: the field's name, its type, and its default, None if it has none.
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
        """The option's spellings, the main one first."""
        return (self.flags or "--" + self.field.replace("_", "-")).split()

    @property
    def flag(self) -> str:
        """The option's main spelling, such as `--max-length`."""
        return self.spellings[0].partition("/")[0]

    @property
    def name(self) -> str:
        """The option's flag as a Python keyword."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def is_repeatable(self) -> bool:
        """Return whether the option may be given several times."""
        return isinstance(self.default, tuple)


def option(text: str, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """Declare a dataclass field that is an option; `more`: other fields of `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(text=text, **more)})


@functools.cache
def declared(config: Any) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in the order of its fields."""
    hints = get_type_hints(config)
    found = []
    for field in dataclasses.fields(config):
        if (rule := field.metadata.get("option")) is not None:
            kind, choices = _kind(hints[field.name])
            default = None if field.default is dataclasses.MISSING else field.default
            found.append(
                dataclasses.replace(rule, field=field.name, kind=kind, default=default, choices=rule.choices or choices)
            )
    return tuple(found)


def _kind(hint: Any) -> tuple[type, tuple[str, ...]]:
    """Return the type for a hint (a union's first one), and a Literal's words."""
    every = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if (first := every[0]) in (bool, int, float):
        return first, ()
    return str, get_args(first) if get_origin(first) is Literal else ()


def check(config: Any) -> None:
    """Check each option's value against its bounds and allowed words. Raises: ConfigError."""
    for each in declared(config.__class__):
        value = getattr(config, each.field)
        given = value if each.is_repeatable else () if value is None else (value,)
        if each.choices and (wrong := [word for word in given if word not in each.choices]):
            raise ConfigError(
                f"{each.flag} {wrong[0]!r}, expected one of {', '.join(each.choices)}", remedy="choose one of them"
            )
        for number in given if each.kind in (int, float) else ():
            if expected := _missed(number, each):
                shown = "of 10^18 or more" if isinstance(number, int) and number >= 10**18 else number
                remedy = each.remedy or f"choose another number, or leave {each.flag} out"
                raise ConfigError(f"{each.flag} {shown}, expected {expected}", remedy=remedy)


def require_taken(config: Any, flag: str, word: str) -> None:
    """Check that each given option is allowed with `flag` set to `word`. Raises: ConfigError."""
    for each in declared(config.__class__):
        if each.taken_with and word not in each.taken_with and getattr(config, each.field) != each.default:
            expected = " or ".join(each.taken_with)
            raise ConfigError(
                f"{each.flag} was given with {flag} {word}, expected it with {flag} {expected} only",
                remedy=f"leave it out, or choose {flag} {each.taken_with[0]}",
            )


def _missed(number: Any, each: Option) -> str:
    """Describe the bound that a number misses, if any, such as `at least 1`."""
    if each.kind is int and (not isinstance(number, int) or isinstance(number, bool)):
        return "a whole number"
    if each.kind is float and not math.isfinite(number):
        return "a finite number"
    bounds = (
        ("at least", each.least, operator.ge),
        ("more than", each.above, operator.gt),
        ("at most", each.most, operator.le),
        ("less than", each.below, operator.lt),
    )
    missed = (f"{words} {bound}" for words, bound, holds in bounds if bound is not None and not holds(number, bound))
    return next(missed, "")


def fingerprint_items(config: Any) -> dict[str, Any]:
    """Return the options in the fingerprint, by their names in it."""
    found = {}
    for each in declared(config.__class__):
        value, covered = getattr(config, each.field), each.fingerprint
        if covered == "always" or (covered == "changed" and value != each.default):
            found[each.key or each.field] = list(value) if isinstance(value, tuple) else value
    return found


def values_of(config: type, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `config` with a typed value; `typed`: a command's options by name."""
    found = {}
    for each in declared(config):
        if (value := typed.get(each.name)) not in (None, ()):
            found[each.field] = each.parse(value) if each.parse else value
    return found
