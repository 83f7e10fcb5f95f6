"""Keep the cells of CSV and TSV files exactly as written in the file.

In `datasets`, pandas infers types for every 10,000 rows: `007` may be text in one chunk and 7 in the next. So all cells
are read as text. Labels, kept columns and inputs of user functions are then parsed as numbers or booleans, unless the
first 10,000 rows contain a spelling such as 007 or +7.
"""

import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.options.source_config import LAYOUT_COLUMNS
from pipelines.prepare.sources.resolve import library
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.reader_options import text_dtypes
from tfrecord_io.errors import SourceError

_PLAIN_QUOTES = "if quotes are plain characters in the file, add --source-option quoting=3"
REMEDY = f"{library.CORRECT}; {_PLAIN_QUOTES}"
_ROWS = 10_000
# With one of these options, pandas chooses the types.
_SPELLINGS = ("converters", "thousands", "true_values", "false_values")


def as_written(listing: SourceListing, config: SourceConfig) -> tuple[SourceListing, Any]:
    """Return the listing of CSV files with a builder that reads cells as text, and the `Features` to parse them to."""
    import datasets

    (builder,), string = listing.builders.values(), datasets.Value("string")
    files, options = library.splits_of(builder), library.options_of(builder.config)
    if (card := builder.info.features) is not None:
        plain = {name: string if isinstance(feature, datasets.Value) else feature for name, feature in card.items()}
        builder = library.with_files(builder, files, features=datasets.Features(plain))
        return dataclasses.replace(listing, builders={None: builder}), card
    if is_spelt := any(getattr(builder.config, name) for name in _SPELLINGS) or builder.config.decimal != ".":
        inferred = next(iter(listing.streams.values())).features
    else:
        first_row = library.open_builder("csv", data_files=library.listed(files), **{**options, "nrows": 1})
        names = next(iter(dataclasses.replace(listing, builders={None: first_row}).streams.values())).features
        builder = library.with_files(builder, files, features=datasets.Features(dict.fromkeys(names, string)))
        inferred = library.in_child(_types, {None: builder})
    texts = {*config.text_columns, *(getattr(config, name) for name in LAYOUT_COLUMNS), *text_dtypes(config)}
    typed = {*inferred} if config.functions else {config.label_column, *config.keep_columns}
    features = {name: feature if name in typed - texts else string for name, feature in inferred.items()}
    if is_spelt:
        builder = library.with_files(builder, files, features=datasets.Features(features))
    return dataclasses.replace(listing, builders={None: builder}), datasets.Features(features)


def _types(builders: Mapping[str | None, Any]) -> Any:
    import datasets

    with library.quiet():
        splits = builders[None].as_streaming_dataset().values()
        shards = (shard for split in splits for shard in library.shards_of(split.with_format("arrow")))
        first = next(table for shard in shards if (table := next(shard.iter(_ROWS), None)) is not None)
        return datasets.Features({name: datasets.Value(_type(first[name])) for name in first.column_names})


def _type(cells: pa.ChunkedArray) -> str:
    cells = pc.utf8_trim_whitespace(cells.drop_null())
    if not len(cells) or pc.any(pc.match_substring_regex(cells, r"^[+-]?0\d|^\+")).as_py():
        return "string"
    if pc.all(pc.match_substring_regex(cells, "^(?i:true|false)$")).as_py():
        return "bool"
    if pc.any(pc.match_substring_regex(cells, r"^-?\d{19,}$")).as_py() and not _can_be(cells, pa.int64()):
        return "string"  # float64 would lose digits
    return next((name for name in ("int64", "float64") if _can_be(cells, pa.type_for_alias(name))), "string")


def _can_be(cells: pa.ChunkedArray | pa.Scalar, kind: pa.DataType) -> bool:
    try:
        cells.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def delimiter_of(builder: Any) -> str:
    """Return the delimiter of CSV files with quoted cells; for other files, an empty string."""
    config = builder.config
    return (config.delimiter or config.sep) if builder.name == "csv" and config.quoting == 0 else ""


def parsed(table: pa.Table, types: pa.Schema, *, row: int, notes: MutableMapping[str, str], where: str) -> pa.Table:
    """Parse text cells to the numbers and booleans in `types`; add a note if a number is written as in +7.

    `row`: number of the table's first row in the file `where`. `notes`: warnings by kind. Raises: SourceError.
    """
    columns = []
    for field, cells in zip(types, table.columns, strict=True):
        is_text = pa.types.is_string(cells.type) and not pa.types.is_string(field.type)
        columns.append(_values(cells, field, row, where) if is_text else cells)
        if not is_text or not pa.types.is_integer(field.type):
            continue
        differs = pc.not_equal(columns[-1].cast(pa.string()), pc.utf8_trim_whitespace(cells))
        if pc.any(differs).as_py():
            text, value = (column.filter(differs)[0].as_py() for column in (cells, columns[-1]))
            cause = f"{where}: column {field.name!r} holds {text!r}, read as the number {value}"
            notes.setdefault(f"number {field.name}", f"{cause}; {_as_text(field.name)}")
    return pa.Table.from_arrays(columns, schema=types)


def _as_text(name: str) -> str:
    return f'to read the column as text, add --source-option \'dtype={{"{name}": "str"}}\''


def _values(column: pa.ChunkedArray, field: pa.Field, row: int, where: str) -> pa.ChunkedArray:
    cells = pc.utf8_trim_whitespace(column)
    try:
        return cells.cast(field.type)
    except pa.ArrowInvalid:
        odd = next(at for at, cell in enumerate(cells) if not _can_be(cell, field.type))
        raise SourceError(
            f"{where}: row {row + odd:,} of column {field.name!r} is {column[odd].as_py()!r}, expected {field.type} as "
            "in the first rows",
            remedy=f"correct the file; {_as_text(field.name)}",
        ) from None


def note_joined(table: pa.Table, delimiter: str, *, row: int, notes: MutableMapping[str, str], where: str) -> None:
    r"""Add a note to `notes`, warnings by kind, if a quoted cell contains lines that look like rows:

    one \t 0
    "two \t 1        the cell `two\t1\nthree\t0\nfour` of a single row
    three \t 0
    four" \t 1
    """
    if "joined" in notes:
        return
    last = table.num_columns - 1
    for index, column in enumerate(table.columns):
        if not pa.types.is_string(column.type):
            continue
        for at in pc.indices_nonzero(pc.match_substring(column, "\n").fill_null(False)).to_pylist():
            lines = [line.split(delimiter) for line in column[at].as_py().split("\n")]
            whole = [[""] * index + lines[0], *lines[1:-1]]
            fits = len(lines[-1]) == index + 1 and all(len(cells) == last + 1 for cells in whole)
            if fits and _look_like_rows(whole, table, but=index):
                cause = f"{where}: row {row + at:,} is {len(lines):,} lines of the file, joined by quotes"
                notes["joined"] = f"{cause}, though each line looks like a row; {_PLAIN_QUOTES}"
                return


def _look_like_rows(lines: list[list[str]], table: pa.Table, *, but: int) -> bool:
    # In columns of few distinct values, such as labels, rows have known values.
    for index, column in enumerate(table.columns):
        known = set(map(str, pc.unique(column).to_pylist()))
        has_few = index > but and pa.types.is_string(column.type) and 2 * len(known) <= len(column)
        if has_few and not known.issuperset(cells[index] for cells in lines):
            return False
    return True
