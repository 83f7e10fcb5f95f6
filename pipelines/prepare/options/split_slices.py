"""Slices of a split, computed as `datasets.ReadInstruction` does, without importing `datasets`.

    train                          every row
    train[100:200]                 rows 100 to 199; negative numbers count from the end
    train[:10%]+train[90%:]        percents are rounded to the closest row, halves to the even row
    train[:1%](pct1_dropremainder) 1 % is rounded down to whole rows first, and N % is N times as many

(Source: https://huggingface.co/docs/datasets/loading#slice-splits)
"""

from __future__ import annotations

import re

__all__ = ["ranges_of", "splits_of"]

_SLICE = re.compile(
    r"(?P<split>\w+(?:\.\w+)*)"
    r"(?:\[(?:(?P<first>-?[\d_]+)(?P<first_percent>%)?)?:(?:(?P<last>-?[\d_]+)(?P<last_percent>%)?)?\])?"
    r"(?:\((?P<rounding>[^)]*)\))?"
)
_JOINED = re.compile(r"\s*\+\s*")
_ROUNDINGS = ("closest", "pct1_dropremainder")


def splits_of(spec: str) -> list[str]:
    """Return the sorted names of the splits in a specification such as `train[:1%]`. Raises: ValueError."""
    return sorted({match["split"] for match in _parts(spec)})


def ranges_of(spec: str, num_rows: int) -> list[tuple[int, int]]:
    """Return the non-empty [start, stop) row ranges of a specification such as `train[:1%]` of one split.

    Raises: ValueError if it cannot be parsed, or does not fit a split of `num_rows` rows.
    """
    ranges = [_range(match, num_rows) for match in _parts(spec)]
    return [(start, stop) for start, stop in ranges if start < stop]


def _parts(spec: str) -> list[re.Match[str]]:
    found = []
    for part in _JOINED.split(spec):
        match = _SLICE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a split or a slice of one")
        _check_rounding(match)
        found.append(match)
    first, *others = found
    if _is_percent(first) and any(_is_percent(each) and _rounding(each) != _rounding(first) for each in others):
        raise ValueError("percents with different roundings, expected the same for all")
    return found


def _check_rounding(match: re.Match[str]) -> None:
    if match["rounding"] is None:
        return
    if match["rounding"] not in _ROUNDINGS:
        raise ValueError(f"rounding {match['rounding']!r}, expected {' or '.join(_ROUNDINGS)}")
    if not _is_percent(match):
        raise ValueError(f"rounding {match['rounding']!r} without percents, expected it with percents only")


def _is_percent(match: re.Match[str]) -> bool:
    # As in `datasets`, a percent sign at one end counts for both.
    return bool(match["first_percent"] or match["last_percent"])


def _rounding(match: re.Match[str]) -> str:
    return match["rounding"] or "closest"


def _range(match: re.Match[str], num_rows: int) -> tuple[int, int]:
    first = _row(match, "first", num_rows)
    last = _row(match, "last", num_rows)
    return _bounded(0 if first is None else first, num_rows), _bounded(num_rows if last is None else last, num_rows)


def _row(match: re.Match[str], end: str, num_rows: int) -> int | None:
    if match[end] is None:
        return None
    number = int(match[end])
    if not _is_percent(match):
        return number
    if abs(number) > 100:
        raise ValueError(f"{number} %, expected -100 to 100")
    if _rounding(match) == "closest":
        return round(number * num_rows / 100.0)
    if num_rows < 100:
        raise ValueError(f"1 % of {num_rows} rows is less than one row, which pct1_dropremainder would round to none")
    return number * int(num_rows / 100.0)


def _bounded(number: int, num_rows: int) -> int:
    return min(max(number + num_rows, 0) if number < 0 else number, num_rows)
