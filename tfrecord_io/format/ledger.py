"""Count all input rows by their use, per shard and per split.

    rows_in  =  rows_used  +  rejected by reason  +  filtered by reason

docs/format.md lists the reasons.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfrecord_io.format.json_fields import ABSENT, Count, Counts, Name, Names, Sha256, Sha256s, count, decoded, mapping
from tfrecord_io.shown import some

FILTERED = "filtered"
HELD_OUT = "held_out"
NOT_HELD_OUT = "not_held_out"
# Reasons; a colon and the name of a filter or evaluation set may follow.
_FILTERED = (FILTERED, HELD_OUT, NOT_HELD_OUT, "duplicate", "contaminated")

_COUNTED, _COUNTED_BY_KEY = ("rows_in", "rows_used", "tokens_cut"), ("rejected", "filtered", "fim")


def is_filtered(reason: str) -> bool:
    """Return whether this reason for an unused row means that it was left out on request, not unusable."""
    return reason.partition(":")[0] in _FILTERED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ledger:
    """Numbers of input rows, in total, and by reason if they are unusable (`rejected`) or left out (`filtered`).

    tokens_cut: number of tokens of used rows that were truncated (`pad`) or left over (`concat`).
    fim: numbers of rows for fill-in-the-middle training, by kind (docs/format.md).
    """

    rows_in: Count
    rows_used: Count
    rejected: Mapping[str, Count] = dataclasses.field(default_factory=dict)
    filtered: Mapping[str, Count] = dataclasses.field(default_factory=dict)
    tokens_cut: Count = 0
    fim: Mapping[str, Count] = dataclasses.field(default_factory=dict, metadata=ABSENT)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "fim" or value}

    @property
    def rows_rejected(self) -> int:
        return sum(self.rejected.values())

    @property
    def rows_filtered(self) -> int:
        """Number of rows left out on request, including rows of other splits."""
        return sum(self.filtered.values())

    @property
    def rows_in_other_splits(self) -> int:
        return self.filtered.get(HELD_OUT, 0) + self.filtered.get(NOT_HELD_OUT, 0)

    @property
    def filtered_of_split(self) -> dict[str, int]:
        """Numbers of filtered rows by reason, without rows of other splits."""
        return {reason: rows for reason, rows in self.filtered.items() if reason not in (HELD_OUT, NOT_HELD_OUT)}

    @property
    def rows_of_split(self) -> int:
        """Number of input rows, without those in other splits (--hold-out)."""
        return self.rows_in - self.rows_in_other_splits

    @classmethod
    def total(cls, ledgers: Iterable[Ledger]) -> Ledger:
        sums: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
        by_key: dict[str, Any] = {name: collections.Counter[str]() for name in _COUNTED_BY_KEY}
        for ledger in ledgers:
            for name in sums:
                sums[name] += getattr(ledger, name)
            for name, total in by_key.items():
                total.update(getattr(ledger, name))
        by_key = {name: dict(total) for name, total in by_key.items()}
        return cls(**sums, **by_key)

    @property
    def balanced(self) -> bool:
        return self.rows_in == self.rows_used + self.rows_rejected + self.rows_filtered


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """An output file. `num_bytes` and `sha256` describe it as stored; `num_tokens` excludes padding.

    length, task: the row length, and the number of the task that made the file; None if all rows have one length.
    num_unlabelled: number of records with label -1. Comparisons ignore it, because it follows from the bytes.
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
        fields = vars(self) | {"ledger": self.ledger.to_json()}
        return {name: value for name, value in fields.items() if value != _OF_SHARD.get(name, dataclasses.MISSING)}


# A shard's fields outside its ledger, and their defaults.
_OF_SHARD = {field.name: field.default for field in dataclasses.fields(Shard) if field.name != "ledger"}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shards(Sequence[Shard]):
    """Shards of a split as one list per field of `Shard` and its ledger: a million shards load in seconds."""

    name: Names
    num_bytes: Counts
    num_examples: Counts
    num_tokens: Counts
    sha256: Sha256s
    rows_in: Counts
    rows_used: Counts
    rejected: Mapping[str, Counts]
    filtered: Mapping[str, Counts]
    tokens_cut: Counts
    length: Counts | None = dataclasses.field(default=None, metadata=ABSENT)
    task: Counts | None = dataclasses.field(default=None, metadata=ABSENT)
    num_unlabelled: Counts | None = dataclasses.field(default=None, metadata=ABSENT)
    fim: Mapping[str, Counts] = dataclasses.field(default_factory=dict, metadata=ABSENT)

    def __post_init__(self) -> None:
        columns = self.to_json()
        reasons = [item for name in _COUNTED_BY_KEY for item in columns.pop(name, {}).items()]
        for name, column in (*columns.items(), *reasons):
            if len(column) != len(self.name):
                raise ValueError(f"{name} has {some(len(column), 'value')} for {some(len(self.name), 'shard')}")

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Shards:
        if isinstance(shards, Shards):
            return shards
        ledgers = [shard.ledger for shard in shards]

        def column(name: str, owners: Sequence[Any] = shards) -> Any:
            return [getattr(owner, name) for owner in owners]

        columns = {name: column(name) for name in _OF_SHARD} | {name: column(name, ledgers) for name in _COUNTED}
        for name, default in _OF_SHARD.items():
            if default is not dataclasses.MISSING and all(value == default for value in columns[name]):
                columns[name] = None
        for name in _COUNTED_BY_KEY:
            by_reason = [getattr(ledger, name) for ledger in ledgers]
            reasons = sorted({reason for rows in by_reason for reason in rows})
            columns[name] = {reason: [rows.get(reason, 0) for rows in by_reason] for reason in reasons}
        return cls(**columns)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None and (name != "fim" or value)}

    def __len__(self) -> int:
        return len(self.name)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        by_key: dict[str, Any] = {
            name: {key: column[index] for key, column in getattr(self, name).items() if column[index]}
            for name in _COUNTED_BY_KEY
        }
        ledger = Ledger(**{name: getattr(self, name)[index] for name in _COUNTED}, **by_key)
        own = {name: column[index] for name in _OF_SHARD if (column := getattr(self, name)) is not None}
        return Shard(**own, ledger=ledger)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRange:
    """Range of integer labels without class names. `distinct`: number of different labels, None if unknown."""

    smallest: int
    largest: int
    distinct: Count | None = dataclasses.field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        if not 1 <= (1 if self.distinct is None else self.distinct) <= self.largest - self.smallest + 1:
            raise ValueError(f"labels cannot have {self.text}")

    @property
    def has_gaps_from_0(self) -> bool:
        return self.smallest != 0 or self.distinct != self.largest + 1

    @property
    def text(self) -> str:
        values = "values" if self.distinct is None else some(self.distinct, "value")
        return f"{values} from {self.smallest} to {self.largest}"

    def joined(self, other: LabelRange) -> LabelRange:
        """Return the range of all labels in either range. `distinct` is None unless one has every integer in it."""
        smallest, largest = min(self.smallest, other.smallest), max(self.largest, other.largest)
        whole = LabelRange(smallest=smallest, largest=largest, distinct=largest - smallest + 1)
        return whole if whole in (self, other) else dataclasses.replace(whole, distinct=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Shards of a split, in order. `labels`: the range of integer labels without class names; None for other labels."""

    shards: Sequence[Shard]
    labels: LabelRange | None = None

    @classmethod
    def from_json(cls, value: Any) -> Split:
        """Convert a split of a JSON manifest. Raises: ValueError or KeyError if it is invalid or contradicts itself."""
        fields = mapping(value)
        split = cls(shards=decoded(Shards, fields["shards"]), labels=decoded(LabelRange | None, fields.get("labels")))
        for name in ("num_examples", "num_bytes", "num_tokens"):
            if count(fields[name]) != getattr(split, name):
                raise ValueError(f"{name} is {fields[name]!r}, but the shards add up to {getattr(split, name)}")
        if decoded(Ledger, fields["ledger"]) != split.ledger:
            raise ValueError("a split's ledger is not the sum of its shards' ledgers")
        return split

    @functools.cached_property
    def columns(self) -> Shards:
        return Shards.of(self.shards)

    @property
    def tasks(self) -> Sequence[int]:
        return range(len(self.shards)) if self.columns.task is None else self.columns.task

    def by_task(self) -> dict[int, tuple[Shard, ...]]:
        shards: dict[int, tuple[Shard, ...]] = {}
        for task, shard in zip(self.tasks, self.shards, strict=True):
            shards[task] = (*shards.get(task, ()), shard)
        return shards

    @property
    def ledger(self) -> Ledger:
        columns = self.columns
        by_key: dict[str, Any] = {
            name: {key: total for key, rows in getattr(columns, name).items() if (total := sum(rows))}
            for name in _COUNTED_BY_KEY
        }
        return Ledger(**{name: sum(getattr(columns, name)) for name in _COUNTED}, **by_key)

    @property
    def num_unlabelled(self) -> int:
        return sum(self.columns.num_unlabelled or ())

    @property
    def num_examples(self) -> int:
        return sum(self.columns.num_examples)

    @property
    def num_bytes(self) -> int:
        return sum(self.columns.num_bytes)

    @property
    def num_tokens(self) -> int:
        return sum(self.columns.num_tokens)
