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

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.split_options import SplitOption
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.parquet.groups import Groups
from pipelines.prepare.sources.rows.function_check import apply_functions
from pipelines.prepare.sources.rows.opening import OpenedSource
from pipelines.prepare.sources.rows.reading import RowReader, Source, SplitSource
from pipelines.prepare.sources.rows.user_functions import UserFunction
from tfrecord_io.errors import SourceError, SplitNotFoundError
from tfrecord_io.shown import first_line

__all__ = ["SelectedSplit", "needed_source_splits", "select", "select_ranges", "select_splits", "split_sources"]

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
    readers, columns = apply_functions(stored, groups, described, functions, requested=asked)
    return Source(
        splits=select_splits(config, {name: groups[name] for name in asked}, readers),
        all_splits={name: _whole(name, groups[name], reader) for name, reader in readers.items()},
        columns=columns,
        identity=found.listing.identity,
    )


def _whole(name: str, groups: Groups, reader: RowReader) -> SplitSource:
    ranges = ((0, groups.total_rows),) if groups.total_rows else ()
    return SplitSource(name=name, source_split=name, groups=groups, ranges=ranges, reader=reader)


def select_splits(
    config: SourceConfig, groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """Return the splits of the output: those asked for, or all that have rows, each cut at `limit` rows.

    Raises: SplitNotFoundError if a split does not exist, a slice has no rows, or two slices have the same name;
        SourceError if there are no rows at all.
    """
    chosen = select_ranges(config, {name: each.total_rows for name, each in groups.items()})
    _warn_of_overlaps(tuple(chosen.values()))
    return split_sources(tuple(chosen.values()), groups, readers)


def select_ranges(config: SourceConfig, lengths: Mapping[str, int]) -> dict[str, SelectedSplit]:
    """Return the row ranges of each split; `lengths` are the source splits' rows. Raises: as `select_splits`."""
    options = [SplitOption.parse(text) for text in config.splits or _with_rows(lengths, dataset=config.dataset)]
    chosen: dict[str, SelectedSplit] = {}
    for option in options:
        selected = _selected(option, lengths)
        if selected.name in chosen:
            raise _given_twice(option, selected)
        chosen[selected.name] = selected
    if config.limit is not None:
        chosen = {name: _first_rows(each, config.limit) for name, each in chosen.items()}
    return chosen


def split_sources(
    chosen: Sequence[SelectedSplit], groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """Return the selected splits with the groups and readers of their rows."""
    return {
        each.name: SplitSource(
            name=each.name,
            source_split=each.source_split,
            groups=groups[each.source_split],
            ranges=each.ranges,
            reader=readers[each.source_split],
        )
        for each in chosen
    }


def _with_rows(lengths: Mapping[str, int], *, dataset: str) -> tuple[str, ...]:
    filled = tuple(name for name, rows in lengths.items() if rows)
    if not filled:
        raise SourceError(f"{dataset}: no rows, expected at least one", remedy="check the files for their content")
    for name in sorted(lengths.keys() - set(filled)):
        _log.warning("%s: split %r has no rows and is left out", dataset, name)
    return filled


def _selected(option: SplitOption, lengths: Mapping[str, int]) -> SelectedSplit:
    source_split, ranges = _slices(option.spec, lengths)
    if not ranges:
        raise SplitNotFoundError(
            f"--split {option.spec!r} has no rows, expected at least one",
            remedy="choose another split or another slice",
        )
    return SelectedSplit(name=option.name or source_split, source_split=source_split, ranges=ranges)


def _slices(spec: str, lengths: Mapping[str, int]) -> tuple[str, tuple[Range, ...]]:
    """Return the split and the filled row ranges of a specification such as `train[:1%]`, as `datasets` reads it."""
    if spec in lengths:  # split names such as `my-split` do not fit the syntax of slices
        return spec, ((0, lengths[spec]),) if lengths[spec] else ()
    import datasets

    try:
        parts = datasets.ReadInstruction.from_spec(spec).to_absolute(dict(lengths))
    except ValueError as error:
        raise SplitNotFoundError(
            f"--split {spec!r}: {first_line(error)}", remedy=_remedy(spec, tuple(lengths))
        ) from error
    source_splits = sorted({part.splitname for part in parts})
    if len(source_splits) > 1:
        raise SplitNotFoundError(
            f"--split {spec!r} joins the splits {source_splits}, expected parts of one split",
            remedy="give --split once for each split",
        )
    return source_splits[0], tuple((part.from_, part.to) for part in parts if part.from_ < part.to)


def _remedy(spec: str, names: Sequence[str]) -> str:
    if "," in spec and set(spec.split(",")) <= set(names):
        return f"give each by itself: {' '.join(f'--split {name}' for name in spec.split(','))}"
    near = suggestion(spec.partition("[")[0], sorted(names))
    return f"{near}choose among {', '.join(sorted(names))}, or a slice of one such as 'train[:1%]'"


def _given_twice(option: SplitOption, found: SelectedSplit) -> SplitNotFoundError:
    join = f"join the parts with a plus sign, as in --split '{found.source_split}[:10%]+{found.source_split}[90%:]'"
    if option.name is not None:
        return SplitNotFoundError(
            f"--split {f'{option.name}={option.spec}'!r}: there is a split {found.name!r} already, expected each name "
            "once",
            remedy=f"choose another name, or {join}",
        )
    return SplitNotFoundError(
        f"--split {option.spec!r}: split {found.name!r} was already given, expected each split once",
        remedy=f"{join}, or give each a name of its own, as in --split 'first={found.source_split}[:10%]'",
    )


def _warn_of_overlaps(chosen: Sequence[SelectedSplit]) -> None:
    for one, other in itertools.combinations(chosen, 2):
        rows = _in_both(one.ranges, other.ranges) if one.source_split == other.source_split else 0
        if rows:
            _log.warning(
                "%s row%s of split %r will be in %r and in %r, whose slices overlap",
                f"{rows:,}",
                "" if rows == 1 else "s",
                one.source_split,
                one.name,
                other.name,
            )


def _in_both(ones: Sequence[Range], others: Sequence[Range]) -> int:
    """Count the rows that are in both."""
    return sum(max(0, min(one[1], other[1]) - max(one[0], other[0])) for one in ones for other in others)


def _first_rows(selected: SelectedSplit, limit: int) -> SelectedSplit:
    kept: list[Range] = []
    for start, stop in selected.ranges:
        if limit <= 0:
            break
        kept.append((start, min(stop, start + limit)))
        limit -= stop - start
    return dataclasses.replace(selected, ranges=tuple(kept))
