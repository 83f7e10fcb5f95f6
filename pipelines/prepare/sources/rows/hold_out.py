"""Rows held out at random for a split of their own, such as `validation`.

    hash of a row's text    0 ........... 2^48        the same for equal texts, on any machine, in any order
    --hold-out validation=1%  |v|                     split validation: 1 % of the hashes
    --hold-out test=2%          |-t-|                 split test: the next 2 %
    train                            |..............  split train: all others

All of these splits read the same rows, each for itself, and each counts the others' in its ledger: `held_out` in train,
`not_held_out` in the splits that are held out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipelines.prepare.options.split_options import HoldOutOption
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.rows.reading import SplitSource
from pipelines.prepare.sources.rows.sides import HASHES, Side
from tfrecord_io.errors import ConfigError, SplitNotFoundError
from tfrecord_io.format.json_fields import NAME, count, items, mapping, text

__all__ = ["HoldOut", "divide", "resolve"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Split `name` has the rows of split `of` whose hashes are in [low, high): what the fingerprint and the manifest
    say of it.
    """

    name: str
    of: str
    low: int
    high: int

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest's options."""
        return {"split": self.name, "of": self.of, "hashes": [self.low, self.high]}

    @classmethod
    def from_json(cls, value: Any) -> HoldOut:
        """Raises: ValueError or KeyError if it is none."""
        fields = mapping(value)
        low, high = (count(number, most=HASHES) for number in items(fields["hashes"]))
        return cls(name=text(fields["split"], NAME), of=text(fields["of"], NAME), low=low, high=high)


def resolve(options: Sequence[HoldOutOption], splits: Mapping[str, SplitSource]) -> tuple[HoldOut, ...]:
    """The hashes of each split that is to be held out of the chosen `splits`. Those of one split share none.

    Raises: ConfigError if a split is to be held out that there is already, or more rows than there are;
        SplitNotFoundError if a split is not there, or it is not clear which is meant.
    """
    found: list[HoldOut] = []
    for option in options:
        if option.name in splits:
            raise ConfigError(
                f"{option.text}: there is a split {option.name!r} already, expected the name of a new one",
                remedy="choose another name, or leave that split out by naming the others with --split",
            )
        of = _of(option, splits)
        low = sum(each.high - each.low for each in found if each.of == of)
        high = low + max(1, round(_share(option, splits[of]) * HASHES))
        if high >= HASHES:
            raise ConfigError(
                f"{option.text}: no row of split {of!r} would be left, expected some", remedy="hold out fewer rows"
            )
        found.append(HoldOut(name=option.name, of=of, low=low, high=high))
    return tuple(found)


def divide(
    splits: Mapping[str, SplitSource],
    held: Sequence[HoldOut],
    *,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    seed: int,
) -> dict[str, SplitSource]:
    """The splits without the rows that are held out of them, and the splits of those rows. `columns` are hashed, as the
    user's functions leave them; a row where one is null stays, but for the `optional` ones.
    """
    divided = dict(splits)
    for each in held:
        whole = splits[each.of]
        side = Side(
            columns=tuple(columns), optional=tuple(optional), seed=seed, low=each.low, high=each.high, held_out=True
        )
        most = max(other.high for other in held if other.of == each.of)
        divided[each.of] = _on_side(whole, dataclasses.replace(side, low=0, high=most, held_out=False))
        divided[each.name] = dataclasses.replace(_on_side(whole, side), name=each.name)
    return divided


def _on_side(split: SplitSource, side: Side) -> SplitSource:
    return dataclasses.replace(split, reader=dataclasses.replace(split.reader, side=side))


def _of(option: HoldOutOption, splits: Mapping[str, SplitSource]) -> str:
    of = option.split or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if of in splits:
        return of
    names = ", ".join(splits)
    if option.split is None:
        raise SplitNotFoundError(
            f"{option.text}: there are the splits {names}, of which none is train",
            remedy=f"say of which one, as in --hold-out {option.name}={next(iter(splits))}:{option.amount}",
        )
    near = suggestion(of, sorted(splits))
    raise SplitNotFoundError(f"{option.text}: no split {of!r} is made here", remedy=f"{near}choose among {names}")


def _share(option: HoldOutOption, split: SplitSource) -> Fraction:
    if option.share is not None:
        return option.share
    assert option.rows is not None, "an option has one of both"
    if option.rows >= split.num_rows:
        raise ConfigError(
            f"{option.text}: split {split.name!r} has {split.num_rows:,} rows, expected fewer to be held out",
            remedy="hold out fewer rows",
        )
    return Fraction(option.rows, split.num_rows)
