"""Select the rows of the output's splits by --split, --limit and --hold-out.

    hash of a row's text    0 ........... 2^48
    --hold-out validation=1%  |v|                     split validation: 1 % of the hashes
    --hold-out test=2%          |-t-|                 split test: the next 2 %
    train                            |..............  split train: all others

Rows keep their numbers from the source. Here, each split reads all rows of the source's train.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import HoldOutOption, parse_split
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.ingest.ingest import RunTasks
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.library import no_rows
from pipelines.prepare.sources.rows.function_check import apply_functions
from pipelines.prepare.sources.rows.hash_filter import HASHES, HashFilter
from pipelines.prepare.sources.rows.opening import OpenedSource, locate_rows
from pipelines.prepare.sources.rows.reading import RowReader, Source, SplitSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import ConfigError, SplitNotFoundError
from tfrecord_io.format.json_fields import NAME, count, items, mapping, optional, text
from tfrecord_io.shown import first_line, some

Range = tuple[int, int]
# Source split, and its [start, stop) row ranges as requested.
Chosen = tuple[str, tuple[Range, ...]]

_ANY_ROWS = 1_000_000

_log = logging.getLogger(__name__)


def needed_source_splits(config: SourceConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Return the source splits that --split uses, by default all in `names`. Raises: SplitNotFoundError."""
    if not config.splits:
        return tuple(names)
    lengths = dict.fromkeys(names, _ANY_ROWS)
    return tuple(dict.fromkeys(_slices(spec, lengths)[0] for _, spec in map(parse_split, config.splits)))


def select(
    config: SourceConfig, opened: OpenedSource, groups: Mapping[str, Groups], functions: Sequence[UserFunction]
) -> Source:
    """Return the source with the output's splits. Its readers apply the user functions.

    `groups`: row groups by source split, at least of the splits that --split uses. Raises: like `select_ranges` and
    `apply_functions`.
    """
    needed = needed_source_splits(config, list(opened.listing.splits))
    stored = {name: RowReader(split=name, types=opened.types(name), addresses=opened.addresses) for name in groups}
    described = {name: opened.columns[name] for name in groups}
    readers, columns = apply_functions(stored, groups, described, tuple(functions), requested=needed)
    lengths = {name: groups[name].total_rows for name in readers}
    whole = {name: (name, _filled([(0, rows)])) for name, rows in lengths.items()}
    chosen = select_ranges(config, {name: lengths[name] for name in needed})
    splits, all_splits = (located(ranges, groups, readers) for ranges in (chosen, whole))
    return Source(splits=splits, all_splits=all_splits, columns=columns, identity=opened.listing.identity)


def located(
    chosen: Mapping[str, Chosen], groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """Return the chosen splits with their row groups and readers. `groups`, `readers`: by source split."""
    return {
        name: SplitSource(name=name, source_split=of, ranges=ranges, reader=readers[of], groups=groups[of])
        for name, (of, ranges) in chosen.items()
    }


def open_rows(
    config: SourceConfig,
    opened: OpenedSource,
    functions: Sequence[UserFunction] = (),
    *,
    folder: str,
    columns: Collection[str] | None,
    run: RunTasks,
) -> Source:
    """Locate the rows of a source, and select the splits; call `run` to ingest missing parts.

    `columns`: columns to read later, None for all. Raises: like `locate_rows` and `select`.
    """
    needed = needed_source_splits(config, list(opened.listing.splits))
    groups = locate_rows(opened, needed, folder=folder, inside=None, columns=columns, run=run)
    return select(config, opened, groups, functions)


def select_ranges(config: SourceConfig, lengths: Mapping[str, int]) -> dict[str, Chosen]:
    """Return the splits that --split requests, by default all with rows. Each is cut at --limit rows.

    `lengths`: rows by source split. Raises: SplitNotFoundError if a split doesn't exist or has no rows, or two have the
    same name; SourceError if there are no rows at all.
    """
    if not config.splits and not any(lengths.values()):
        raise no_rows(config.dataset)
    chosen: dict[str, Chosen] = {}
    for option in config.splits or lengths:
        name, spec = parse_split(option)
        source_split, ranges = _slices(spec, lengths)
        name = name or source_split
        if not ranges and config.splits:
            cause = f"--split {spec!r} has no rows, expected at least one"
            raise SplitNotFoundError(cause, remedy="choose another split or another slice")
        if name in chosen:
            raise SplitNotFoundError(
                f"--split {option!r}: there is already a split {name!r}, expected each name once",
                remedy=f"give each a different name, as in --split 'first={source_split}[:10%]', or join the parts "
                f"with a plus sign, as in --split '{source_split}[:10%]+{source_split}[90%:]'",
            )
        if ranges:
            chosen[name] = source_split, _filled(ranges, limit=config.limit)
        else:
            _log.warning("%s: split %r has no rows and is left out", config.dataset, name)
    for (name, (of, ranges)), (later, (of_later, later_ranges)) in itertools.combinations(chosen.items(), 2):
        spans = itertools.product(ranges, later_ranges) if of == of_later else ()
        if rows := sum(max(0, min(left[1], right[1]) - max(left[0], right[0])) for left, right in spans):
            twice = f"{some(rows, 'row')} of split {of!r} will be in {name!r} and in {later!r}"
            _log.warning("%s, because their slices overlap; give slices without common rows", twice)
    return chosen


def _slices(spec: str, lengths: Mapping[str, int]) -> tuple[str, tuple[Range, ...]]:
    if spec in lengths:  # split names such as `my-split` don't fit the syntax of slices
        return spec, _filled([(0, lengths[spec])])
    import datasets

    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(dict(lengths))
    except ValueError as error:
        remedy = f"{suggestion(spec.partition('[')[0], sorted(lengths))}choose among {', '.join(sorted(lengths))}"
        if set(spec.split(",")) <= set(lengths):
            remedy = f"name each split separately: {' '.join(f'--split {name}' for name in spec.split(','))}"
        remedy += ", or a slice of one such as 'train[:1%]'"
        raise SplitNotFoundError(f"--split {spec!r}: {first_line(error)}", remedy=remedy) from error
    source_splits = sorted({part.splitname for part in parts})
    if len(source_splits) > 1:
        cause = f"--split {spec!r} joins the splits {', '.join(source_splits)}, expected parts of one split"
        raise SplitNotFoundError(cause, remedy="give --split once for each split")
    return source_splits[0], _filled([(part.from_, part.to) for part in parts])


def _filled(ranges: Sequence[Range], *, limit: int | None = None) -> tuple[Range, ...]:
    left, filled = 1 << 62 if limit is None else limit, []
    for start, stop in ranges:
        if (rows := min(stop - start, left)) > 0:
            filled.append((start, start + rows))
            left -= rows
    return tuple(filled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Held-out split: rows of `from_split` with a hash in [low, high). `by`: hashed column, None for tokenized ones."""

    name: str
    from_split: str
    low: int
    high: int
    by: str | None = None

    def to_json(self) -> dict[str, Any]:
        by = {"by": self.by} if self.by else {}
        return {"split": self.name, "of": self.from_split, "hashes": [self.low, self.high], **by}

    @classmethod
    def from_json(cls, value: Any) -> HoldOut:
        """Parse the result of `to_json`. Raises: ValueError, KeyError."""
        fields = mapping(value)
        low, high = (count(number, most=HASHES) for number in items(fields["hashes"]))
        by = optional(text, fields.get("by"))
        return cls(name=text(fields["split"], NAME), from_split=text(fields["of"], NAME), low=low, high=high, by=by)


def resolve_hold_outs(
    options: Sequence[HoldOutOption], splits: Mapping[str, SplitSource], *, by: str | None = None
) -> tuple[HoldOut, ...]:
    """Return the held-out splits. Splits that take rows from the same one of `splits` have disjoint ranges of hashes.

    `by`: see `HoldOut`. Raises: ConfigError if a name is taken, or a split has too few rows; SplitNotFoundError.
    """
    hold_outs: list[HoldOut] = []
    for option in options:
        if option.name in splits:
            raise ConfigError(
                f"{option.text}: there is already a split {option.name!r}, expected the name of a new split",
                remedy="choose another name, or leave that split out by naming the others with --split",
            )
        default = "train" if "train" in splits or len(splits) != 1 else next(iter(splits))
        if (from_split := option.split or default) not in splits:
            raise SplitNotFoundError(
                f"{option.text}: this build makes no split {from_split!r}, expected one of {', '.join(splits)}",
                remedy=f"{suggestion(from_split, sorted(splits))}name a split as in --hold-out {option.name}="
                f"{next(iter(splits))}:{option.amount}",
            )
        low = sum(earlier.high - earlier.low for earlier in hold_outs if earlier.from_split == from_split)
        all_rows = splits[from_split].num_rows
        share = Fraction(option.rows or 0, max(all_rows, 1)) if option.share is None else option.share
        high = low + max(1, round(share * HASHES))
        if (option.rows or 0) >= max(all_rows, 1) or high >= HASHES:
            cause = f"no row of split {from_split!r} would be left of {some(all_rows, 'row')}, expected at least one"
            raise ConfigError(f"{option.text}: {cause}", remedy="hold out fewer rows")
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
    """Return `splits` without their held-out rows, and the new splits with these rows, by name.

    `columns`: columns to hash if a hold-out has no `by`. `optional`: see `HashFilter`.
    """
    divided = dict(splits)
    for hold_out in hold_outs:
        whole = splits[hold_out.from_split]
        inside = HashFilter(
            columns=(hold_out.by,) if hold_out.by else tuple(columns),
            optional=tuple(optional),
            seed=seed,
            low=hold_out.low,
            high=hold_out.high,
            held_out=True,
        )
        end = max(same.high for same in hold_outs if same.from_split == hold_out.from_split)
        outside = dataclasses.replace(inside, low=0, high=end, held_out=False)
        for name, kept in ((hold_out.from_split, outside), (hold_out.name, inside)):
            reader = dataclasses.replace(whole.reader, hold_out=kept)
            divided[name] = dataclasses.replace(whole, name=name, reader=reader)
    return divided
