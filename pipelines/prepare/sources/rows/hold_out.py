"""Holding rows out at random for a split of their own, such as `validation`.

    hash of a row's text    0 ........... 2^48        the same for equal texts, on any machine, in any order
    --hold-out validation=1%  |v|                     split validation: 1 % of the hashes
    --hold-out test=2%          |-t-|                 split test: the next 2 %
    train                            |..............  split train: all others

With --hold-out-by the hash is that of one column, so that all rows with the same value are in the same split.

Each of these splits reads all the rows, and its ledger counts those of the others: as `held_out` in train, as
`not_held_out` in the splits that are held out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipelines.prepare.options.split_options import HoldOutOption
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.rows.hash_filter import HASHES, HashFilter
from pipelines.prepare.sources.rows.reading import SplitSource
from tfrecord_io.errors import ConfigError, SplitNotFoundError
from tfrecord_io.format.json_fields import NAME, count, items, mapping, optional, text

__all__ = ["HoldOut", "divide", "resolve"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Split `name` gets the rows of `from_split` whose hash, of their text or of column `by`, is in [low, high)."""

    name: str
    from_split: str
    low: int
    high: int
    by: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the fingerprint and in the manifest's options."""
        return {
            "split": self.name,
            "of": self.from_split,
            "hashes": [self.low, self.high],
            **({"by": self.by} if self.by else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> HoldOut:
        """Parse an entry. Raises: ValueError or KeyError if it is malformed."""
        fields = mapping(value)
        low, high = (count(number, most=HASHES) for number in items(fields["hashes"]))
        by = optional(text, fields.get("by"))
        return cls(name=text(fields["split"], NAME), from_split=text(fields["of"], NAME), low=low, high=high, by=by)


def resolve(
    options: Sequence[HoldOutOption], splits: Mapping[str, SplitSource], *, by: str | None = None
) -> tuple[HoldOut, ...]:
    """Give each new split a range of hashes of the chosen `splits`; ranges of one split do not overlap.

    `by`: the column that is hashed, by default those that become tokens.

    Raises: ConfigError if a new split has the name of a chosen one, or would get more rows than there are;
        SplitNotFoundError if a split does not exist, or it is not clear which one is meant.
    """
    hold_outs: list[HoldOut] = []
    for option in options:
        if option.name in splits:
            raise ConfigError(
                f"{option.text}: there is a split {option.name!r} already, expected the name of a new split",
                remedy="choose another name, or leave that split out by naming the others with --split",
            )
        from_split = _from_split(option, splits)
        low = sum(each.high - each.low for each in hold_outs if each.from_split == from_split)
        high = low + max(1, round(_share(option, splits[from_split]) * HASHES))
        if high >= HASHES:
            raise ConfigError(
                f"{option.text}: no row of split {from_split!r} would be left, expected some",
                remedy="hold out fewer rows",
            )
        hold_outs.append(HoldOut(name=option.name, from_split=from_split, low=low, high=high, by=by))
    return tuple(hold_outs)


def divide(
    splits: Mapping[str, SplitSource],
    hold_outs: Sequence[HoldOut],
    *,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    seed: int,
) -> dict[str, SplitSource]:
    """Return the splits without the rows that are held out of them, and the new splits of those rows.

    `columns` are hashed after the user's functions, unless a hold-out names its own. A row with a null in one of them,
    except the `optional` ones, is never held out.
    """
    divided = dict(splits)
    for each in hold_outs:
        whole = splits[each.from_split]
        inside = HashFilter(
            columns=(each.by,) if each.by else tuple(columns),
            optional=tuple(optional),
            seed=seed,
            low=each.low,
            high=each.high,
            held_out=True,
        )
        end = max(other.high for other in hold_outs if other.from_split == each.from_split)
        outside = dataclasses.replace(inside, low=0, high=end, held_out=False)
        for name, kept in ((each.from_split, outside), (each.name, inside)):
            reader = dataclasses.replace(whole.reader, hold_out=kept)
            divided[name] = dataclasses.replace(whole, name=name, reader=reader)
    return divided


def _from_split(option: HoldOutOption, splits: Mapping[str, SplitSource]) -> str:
    name = option.split or ("train" if "train" in splits or len(splits) != 1 else next(iter(splits)))
    if name not in splits:
        raise SplitNotFoundError(
            f"{option.text}: no split {name!r} is made here, expected one of {', '.join(splits)}",
            remedy=f"{suggestion(name, sorted(splits))}name it as in --hold-out {option.name}={next(iter(splits))}:"
            f"{option.amount}",
        )
    return name


def _share(option: HoldOutOption, split: SplitSource) -> Fraction:
    if option.share is not None:
        return option.share
    assert option.rows is not None, "a HoldOutOption has either a share or rows"
    if option.rows >= split.num_rows:
        raise ConfigError(
            f"{option.text}: split {split.name!r} has only {split.num_rows:,} rows",
            remedy="hold out fewer rows",
        )
    return Fraction(option.rows, split.num_rows)
