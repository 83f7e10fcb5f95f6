"""Selecting rows of the source's splits by --split and --limit, under the names of the output's splits.

    source              options                              output
    train  1,000 rows   --split train                        train       train [0, 1000)
    test     100        --split 'a=train[:50%]'              a           train [0, 500)
                        --split 'b=train[50%:]'              b           train [500, 1000)

Row numbers stay those of the source's split.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.split_options import SplitOption
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.resolve.library import no_rows
from pipelines.prepare.sources.rows.function_check import apply_functions
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.reading import RowReader, Source, SplitSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import SplitNotFoundError
from tfrecord_io.shown import first_line

__all__ = ["SelectedSplit", "needed_source_splits", "select", "select_ranges", "select_splits"]

Range = tuple[int, int]

# Stands for the rows of a split before they are known.
_ANY_ROWS = 1_000_000

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectedSplit:
    """Split `name` of the output: [start, stop) row ranges of a split of the source, in the order asked for."""

    name: str
    source_split: str
    ranges: tuple[Range, ...]

    def source(self, groups: Mapping[str, Groups], readers: Mapping[str, RowReader]) -> SplitSource:
        """Return the split with the groups and the reader of its rows."""
        of = self.source_split
        return SplitSource(name=self.name, source_split=of, groups=groups[of], ranges=self.ranges, reader=readers[of])


def needed_source_splits(config: SourceConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Return which of the source's splits the options name, before their numbers of rows are known.

    Raises: SplitNotFoundError if an option names a split that does not exist.
    """
    if not config.splits:
        return tuple(names)
    options = map(SplitOption.parse, config.splits)
    return tuple(dict.fromkeys(_slices(option.spec, dict.fromkeys(names, _ANY_ROWS))[0] for option in options))


def select(
    config: SourceConfig, found: OpenedSource, groups: Mapping[str, Groups], functions: Sequence[UserFunction]
) -> Source:
    """Return the source with its rows as the user functions change them, and the splits of the output.

    `groups` are the located rows of the splits that the options name, and perhaps of others.

    Raises: as `select_splits` and `apply_functions`.
    """
    asked = needed_source_splits(config, list(found.listing.splits))
    stored = {name: RowReader(split=name, types=found.types(name), addresses=found.addresses) for name in groups}
    described = {name: found.columns[name] for name in groups}
    readers, columns = apply_functions(stored, groups, described, tuple(functions), requested=asked)
    whole = [
        SelectedSplit(name=name, source_split=name, ranges=_filled([(0, groups[name].total_rows)])) for name in readers
    ]
    return Source(
        splits=select_splits(config, {name: groups[name] for name in asked}, readers),
        all_splits={each.name: each.source(groups, readers) for each in whole},
        columns=columns,
        identity=found.listing.identity,
    )


def select_splits(
    config: SourceConfig, groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """Return the splits of the output: those asked for, or all that have rows, each cut at `limit` rows.

    Raises: SplitNotFoundError if a split does not exist, a slice has no rows, or two slices have the same name;
        SourceError if there are no rows at all.
    """
    chosen = select_ranges(config, {name: each.total_rows for name, each in groups.items()})
    for one, other in itertools.combinations(chosen.values(), 2):
        spans = itertools.product(one.ranges, other.ranges) if one.source_split == other.source_split else ()
        if rows := sum(max(0, min(left[1], right[1]) - max(left[0], right[0])) for left, right in spans):
            _log.warning(
                "%s rows of split %r will be in %r and in %r, whose slices overlap",
                f"{rows:,}",
                one.source_split,
                one.name,
                other.name,
            )
    return {name: each.source(groups, readers) for name, each in chosen.items()}


def select_ranges(config: SourceConfig, lengths: Mapping[str, int]) -> dict[str, SelectedSplit]:
    """Return the row ranges of each split; `lengths` are the source splits' rows. Raises: as `select_splits`."""
    if not config.splits and not any(lengths.values()):
        raise no_rows(config.dataset)
    chosen: dict[str, SelectedSplit] = {}
    for text in config.splits or lengths:
        option = SplitOption.parse(text)
        source_split, ranges = _slices(option.spec, lengths)
        name = option.name or source_split
        if not ranges and config.splits:
            raise SplitNotFoundError(
                f"--split {option.spec!r} has no rows, expected at least one",
                remedy="choose another split or another slice",
            )
        if name in chosen:
            raise SplitNotFoundError(
                f"--split {text!r}: there is a split {name!r} already, expected each name once",
                remedy=f"give each a name of its own, as in --split 'first={source_split}[:10%]', or join the parts "
                f"with a plus sign, as in --split '{source_split}[:10%]+{source_split}[90%:]'",
            )
        if ranges:
            chosen[name] = SelectedSplit(name=name, source_split=source_split, ranges=_first(ranges, config.limit))
        else:
            _log.warning("%s: split %r has no rows and is left out", config.dataset, name)
    return chosen


def _slices(spec: str, lengths: Mapping[str, int]) -> tuple[str, tuple[Range, ...]]:
    """Return the split and the filled row ranges of a specification such as `train[:1%]`, as `datasets` reads it."""
    if spec in lengths:  # split names such as `my-split` do not fit the syntax of slices
        return spec, _filled([(0, lengths[spec])])
    import datasets

    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(dict(lengths))
    except ValueError as error:
        remedy = f"{suggestion(spec.partition('[')[0], sorted(lengths))}choose among {', '.join(sorted(lengths))}"
        if set(spec.split(",")) <= set(lengths):
            remedy = f"give each by itself: {' '.join(f'--split {name}' for name in spec.split(','))}"
        raise SplitNotFoundError(
            f"--split {spec!r}: {first_line(error)}", remedy=f"{remedy}, or a slice of one such as 'train[:1%]'"
        ) from error
    source_splits = sorted({part.splitname for part in parts})
    if len(source_splits) > 1:
        raise SplitNotFoundError(
            f"--split {spec!r} joins the splits {source_splits}, expected parts of one split",
            remedy="give --split once for each split",
        )
    return source_splits[0], _filled([(part.from_, part.to) for part in parts])


def _filled(ranges: Sequence[Range]) -> tuple[Range, ...]:
    return tuple((start, stop) for start, stop in ranges if start < stop)


def _first(ranges: Sequence[Range], limit: int | None) -> tuple[Range, ...]:
    """Return the first `limit` rows of ranges."""
    if limit is None:
        return tuple(ranges)
    left = min(limit, 1 << 62) - np.cumsum([0, *(stop - start for start, stop in ranges)])
    return _filled([(start, min(stop, start + int(most))) for (start, stop), most in zip(ranges, left, strict=False)])
