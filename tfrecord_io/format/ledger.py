"""Shards, and for each a ledger that accounts for its input rows.

    rows_in  =  rows_used  +  rejected by reason          of a shard, and so of a split

Nothing is dropped silently: a row is in some record, or counted here with its reason. Rows that are left out on purpose
are no errors, and are counted, but not listed one by one:

    filtered        one of the user's own filters left it out; filtered:NAME, a filter of `pipelines.filters`
    duplicate       a row before it has the same text, and stays
    contaminated:SET    it has a run of words that a text of that evaluation set has
    held_out        it is held out, and in another split of this dataset
    not_held_out    of a split that is held out: it is none of the rows held out for this one
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tfrecord_io.format.json_fields import ABSENT, Count, Name, Sha256, count, decoded, mapping

FILTERED = "filtered"
HELD_OUT = "held_out"
NOT_HELD_OUT = "not_held_out"
# The reasons of rows that are left out on purpose; NAME of what left them out may follow, behind a colon.
_LEFT_OUT = (FILTERED, HELD_OUT, NOT_HELD_OUT, "duplicate", "contaminated")


def is_left_out(reason: str) -> bool:
    """Return whether rows with this reason are left out on purpose."""
    return reason.partition(":")[0] in _LEFT_OUT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """Account of the input: `rows_in == rows_used + sum(rejected.values())`, by reason.

    `tokens_cut` are tokens of used rows that are in no record: truncated (`pad`), or a dropped remainder (`concat`).
    """

    rows_in: Count
    rows_used: Count
    rejected: Mapping[str, Count] = dataclasses.field(default_factory=dict)
    tokens_cut: Count = 0

    @property
    def rows_rejected(self) -> int:
        """Count all rejected rows, whatever the reason."""
        return sum(self.rejected.values())

    @property
    def left_out(self) -> dict[str, int]:
        """Return the rows that were left out on purpose, by reason."""
        return {reason: rows for reason, rows in self.rejected.items() if is_left_out(reason)}

    @property
    def rows_left_out(self) -> int:
        """Count the rows that were left out on purpose."""
        return sum(self.left_out.values())

    @property
    def rows_filtered(self) -> int:
        """Count the rows that filters left out."""
        return self.rows_left_out - self.rows_in_other_splits

    @property
    def rows_in_other_splits(self) -> int:
        """Count the rows that are in another split by --hold-out."""
        return self.rejected.get(HELD_OUT, 0) + self.rejected.get(NOT_HELD_OUT, 0)

    @property
    def rows_of_split(self) -> int:
        """Count the rows that were read and are in no other split by --hold-out."""
        return self.rows_in - self.rows_in_other_splits

    @property
    def unusable(self) -> dict[str, int]:
        """Return the rows that could not be used, by reason: the rejected ones but those left out on purpose."""
        return {reason: rows for reason, rows in self.rejected.items() if not is_left_out(reason)}

    @classmethod
    def total(cls, ledgers: Iterable[Ledger]) -> Ledger:
        """Return the sum of several."""
        every = tuple(ledgers)
        rejected = collections.Counter[str]()
        for ledger in every:
            rejected.update(ledger.rejected)
        return cls(
            rows_in=sum(ledger.rows_in for ledger in every),
            rows_used=sum(ledger.rows_used for ledger in every),
            rejected=dict(rejected),
            tokens_cut=sum(ledger.tokens_cut for ledger in every),
        )

    @property
    def balanced(self) -> bool:
        """Return whether every row is accounted for."""
        return self.rows_in == self.rows_used + self.rows_rejected


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """One file. `num_bytes` and `sha256` are of the file as stored; `num_tokens` counts what is not padding.

    `num_unlabelled`: records whose label is -1, which is none. It follows from the bytes, so no comparison needs it.
    In a dataset of several row lengths `length` is that of this file's rows, and `task` the number of the set of rows
    that it was made from, which other files of the split have in common with it. Elsewhere both are None.
    """

    name: Name
    num_bytes: Count
    num_examples: Count
    num_tokens: Count
    sha256: Sha256
    ledger: Ledger
    length: Count | None = dataclasses.field(default=None, metadata=ABSENT)
    task: Count | None = dataclasses.field(default=None, metadata=ABSENT)
    num_unlabelled: Count = dataclasses.field(default=0, compare=False, metadata=ABSENT)

    def to_json(self) -> dict[str, Any]:
        """Return the shard as the manifest has it: without `length`, `task` and `num_unlabelled` if it has none."""
        fields = dataclasses.asdict(self) | {"num_unlabelled": self.num_unlabelled or None}
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRange:
    """Integer labels without names: `smallest` and `largest`, and how many are `distinct`, None if that is unknown."""

    smallest: int
    largest: int
    distinct: Count | None = dataclasses.field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        if not 1 <= (1 if self.distinct is None else self.distinct) <= self.largest - self.smallest + 1:
            raise ValueError(f"labels of {self.text}")

    @property
    def has_gaps_from_0(self) -> bool:
        """Return whether the labels are not known to be 0, 1, 2 and so on."""
        return self.smallest != 0 or self.distinct != self.largest + 1

    @property
    def text(self) -> str:
        """Return the range in messages."""
        values = "values" if self.distinct is None else f"{self.distinct:,} value{'' if self.distinct == 1 else 's'}"
        return f"{values} from {self.smallest} to {self.largest}"

    def joined(self, other: LabelRange) -> LabelRange:
        """Return the range of both. How many labels are distinct is known if one has all integers between."""
        smallest, largest = min(self.smallest, other.smallest), max(self.largest, other.largest)
        whole = LabelRange(smallest=smallest, largest=largest, distinct=largest - smallest + 1)
        return whole if whole in (self, other) else dataclasses.replace(whole, distinct=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """One split: its shards in order. `labels`: of integer labels without names, where they are known."""

    shards: tuple[Shard, ...]
    labels: LabelRange | None = None

    @classmethod
    def from_json(cls, value: Any) -> Split:
        """Read a split. Raises: ValueError or KeyError if it is none, or its sums are not those of its shards."""
        fields = mapping(value)
        split = cls(
            shards=decoded(tuple[Shard, ...], fields["shards"]), labels=decoded(LabelRange | None, fields.get("labels"))
        )
        for name in ("num_examples", "num_bytes", "num_tokens"):
            if count(fields[name]) != getattr(split, name):
                raise ValueError(f"{name} is {fields[name]!r} but the shards add up to {getattr(split, name)}")
        if decoded(Ledger, fields["ledger"]) != split.ledger:
            raise ValueError("the ledger of a split is not the sum of its shards' ledgers")
        return split

    def task_of(self, index: int) -> int:
        """Return the number of the set of rows that shard `index` was made from."""
        task = self.shards[index].task
        return index if task is None else task

    def by_task(self) -> dict[int, tuple[Shard, ...]]:
        """Return the shards that were made from each set of rows: one, or one for each length."""
        found: dict[int, tuple[Shard, ...]] = {}
        for index, shard in enumerate(self.shards):
            task = self.task_of(index)
            found[task] = (*found.get(task, ()), shard)
        return found

    @property
    def ledger(self) -> Ledger:
        """Return the sum of the shards' ledgers."""
        return Ledger.total(shard.ledger for shard in self.shards)

    @property
    def num_unlabelled(self) -> int:
        """Count the records whose label is -1, which is none."""
        return sum(shard.num_unlabelled for shard in self.shards)

    @property
    def num_examples(self) -> int:
        """Count the records in all shards."""
        return sum(shard.num_examples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Count the bytes of all shards as stored."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        """Count the tokens that are not padding, in all shards."""
        return sum(shard.num_tokens for shard in self.shards)
