"""Which rows of which split the user asked for, each choice under the name that it has in the output.

    source              asked for                            output
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

from pipelines.prepare.options import split_slices
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.split_options import SplitOption
from pipelines.prepare.options.suggestions import suggestion
from pipelines.prepare.sources.formats.groups import Groups
from pipelines.prepare.sources.rows.reading import RowReader, SplitSource
from tfrecord_io.errors import SourceError, SplitNotFoundError

__all__ = ["Selected", "choose", "needed", "select", "selected"]

Range = tuple[int, int]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    """Rows of the source's split `source_split`, [start, stop) ranges in the order asked for, as split `name`."""

    name: str
    source_split: str
    ranges: tuple[Range, ...]


def needed(config: SourceConfig, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the source's splits that rows are taken from, before anything is known of their rows.

    Raises: SplitNotFoundError if another split is asked for.
    """
    if not config.splits:
        return tuple(names)
    return tuple(dict.fromkeys(_source_split(option.spec, names) for option in map(SplitOption.parse, config.splits)))


def choose(
    config: SourceConfig, groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """The splits of the output: those asked for, or all that have rows. A `limit` is of each of them.

    Raises: SplitNotFoundError if a split is not there, a slice has no rows, or two slices have the same name;
        SourceError if there are no rows at all.
    """
    chosen = selected(config, {name: each.total_rows for name, each in groups.items()})
    _warn_of_overlaps(tuple(chosen.values()))
    return select(tuple(chosen.values()), groups, readers)


def selected(config: SourceConfig, lengths: Mapping[str, int]) -> dict[str, Selected]:
    """The rows of each split of the output, from the rows that the source's splits have. Raises: as `choose`."""
    options = [SplitOption.parse(text) for text in config.splits or _with_rows(lengths, dataset=config.dataset)]
    chosen: dict[str, Selected] = {}
    for option in options:
        found = _selected(option, lengths)
        if found.name in chosen:
            raise _given_twice(option, found)
        chosen[found.name] = found
    if config.limit is not None:
        chosen = {name: _first_rows(each, config.limit) for name, each in chosen.items()}
    return chosen


def select(
    chosen: Sequence[Selected], groups: Mapping[str, Groups], readers: Mapping[str, RowReader]
) -> dict[str, SplitSource]:
    """The splits with these rows, which are all there."""
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


def _selected(option: SplitOption, lengths: Mapping[str, int]) -> Selected:
    source_split = _source_split(option.spec, tuple(lengths))
    try:
        ranges = (
            [(0, lengths[source_split])]
            if option.spec == source_split
            else split_slices.ranges_of(option.spec, lengths[source_split])
        )
    except ValueError as error:
        raise SplitNotFoundError(
            f"--split {option.spec!r}: {error}", remedy=_remedy(option.spec, tuple(lengths))
        ) from error
    if not sum(stop - start for start, stop in ranges):
        raise SplitNotFoundError(
            f"--split {option.spec!r} has no rows, expected at least one",
            remedy="choose another split or another slice",
        )
    return Selected(name=option.name or source_split, source_split=source_split, ranges=tuple(ranges))


def _source_split(spec: str, names: Sequence[str]) -> str:
    if spec in names:  # a split may have a name that no slice can be written of, such as `my-split`
        return spec
    try:
        source_splits = split_slices.splits_of(spec)
    except ValueError as error:
        raise SplitNotFoundError(f"--split {spec!r}: {error}", remedy=_remedy(spec, names)) from error
    if len(source_splits) > 1:
        raise SplitNotFoundError(
            f"--split {spec!r} joins the splits {source_splits}, expected parts of one split",
            remedy="give --split once for each split",
        )
    if source_splits[0] not in names:
        raise SplitNotFoundError(f"--split {spec!r}: unknown split {source_splits[0]!r}", remedy=_remedy(spec, names))
    return source_splits[0]


def _remedy(spec: str, names: Sequence[str]) -> str:
    if "," in spec and set(spec.split(",")) <= set(names):
        return f"give each by itself: {' '.join(f'--split {name}' for name in spec.split(','))}"
    near = suggestion(spec.partition("[")[0], sorted(names))
    return f"{near}choose among {', '.join(sorted(names))}, sliced as in 'train[:1%]' where wanted"


def _given_twice(option: SplitOption, found: Selected) -> SplitNotFoundError:
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


def _warn_of_overlaps(chosen: Sequence[Selected]) -> None:
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
    """Rows of the source that are in both, each counted once."""
    shared = {
        (max(one[0], other[0]), min(one[1], other[1]))
        for one in ones
        for other in others
        if max(one[0], other[0]) < min(one[1], other[1])
    }
    total, end = 0, 0
    for start, stop in sorted(shared):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


def _first_rows(selected: Selected, limit: int) -> Selected:
    kept: list[Range] = []
    for start, stop in selected.ranges:
        if limit <= 0:
            break
        kept.append((start, min(stop, start + limit)))
        limit -= stop - start
    return dataclasses.replace(selected, ranges=tuple(kept))
