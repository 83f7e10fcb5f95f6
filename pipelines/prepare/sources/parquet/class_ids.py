"""Give classes the same ids in all files, even if the files list different class names.

    2023.parquet    neg neutral pos     0 1 2  ──►  0 1 2
    2024.parquet    neg pos             0 1    ──►  0 2       names of the split: neg, neutral, pos

`datasets` would use the class names of the first file for all files.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.process import threads
from pipelines.prepare.sources.parquet import access
from pipelines.prepare.sources.parquet.row_groups import Footer
from pipelines.prepare.sources.parquet.stored_columns import is_list
from pipelines.prepare.sources.resolve import library
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.features import Columns, columns_of
from pipelines.prepare.sources.resolve.library import SourceListing
from tfrecord_io.errors import SourceError
from tfrecord_io.schema import UNLABELLED
from tfrecord_io.shown import without_access

# New class ids by column; the index is the class id in the file.
NewIds = Mapping[str, Sequence[int]]
_NO_CLASS = -2


def schemas_of(listing: SourceListing, footers: Mapping[str, Footer]) -> dict[str, dict[str, pa.Schema]]:
    """Return the schema of each file, by split and path, if `datasets` would use the first file's schema for all."""
    schemas = {}
    for name, files in listing.splits.items():
        if listing.features_of(name) is not None:
            continue
        if footers:
            schemas[name] = {file.path: footers[file.path].schema for file in files}
        elif listing.kind == "arrow" and len(files) > 1:
            with library.reading(lambda files=files: without_access(files[0].path)):  # type: ignore[misc]
                of_files = threads.ordered_map(_arrow_schema, files, threads=16)
                schemas[name] = dict(zip((file.path for file in files), of_files, strict=True))
    return schemas


def _arrow_schema(file: DataFile) -> pa.Schema:
    with access.opened(file, {}) as handle:
        try:
            return pa.ipc.open_stream(handle).schema
        except pa.ArrowInvalid:
            handle.seek(0)
            return pa.ipc.open_file(handle).schema


def united(
    columns: Columns, schemas: Mapping[str, pa.Schema], *, names: Collection[str]
) -> tuple[Columns, dict[str, NewIds]]:
    """Return `columns` with the classes of all files, in order of appearance, and each file's new class ids, by path.

    `columns`: columns of the first file. `schemas`: by path. `names`: columns to examine. Raises: SourceError if a
    column has classes in one file but not in another.
    """
    by_path: dict[str, Columns] = {}
    for path, schema in schemas.items():
        same = next((known for known in by_path if schemas[known] is schema), None)
        by_path[path] = by_path[same] if same else columns_of(schema).with_fields()
    first, ids = dict(columns.with_fields()), dict[str, dict[str, Sequence[int]]]()
    for name in filter(first.__contains__, names):
        own = {path: known[name] for path, known in by_path.items() if name in known and known[name].kind != pa.null()}
        if all(column.classes == first[name].classes for column in own.values()):
            continue
        forms = {path: (column.classes is None, is_list(column.kind)) for path, column in own.items()}
        form = first[name].classes is None, is_list(first[name].kind)
        if odd := next((path for path in own if name not in columns or forms[path] != form), None):
            raise SourceError(
                f"{without_access(odd)}: column {name!r} is {own[odd].text}, but {first[name].text} in the first file, "
                "expected the same classes",
                remedy="convert all files to the same classes, or name only some of them with a glob",
            )
        union = tuple(dict.fromkeys(label for column in own.values() for label in column.classes or ()))
        text = f"List(ClassLabel(names={[*union]}))" if is_list(columns[name].kind) else f"ClassLabel(names={[*union]})"
        columns = Columns({**columns, name: dataclasses.replace(columns[name], classes=union, text=text)})
        for path, column in own.items():
            if (new := [union.index(label) for label in column.classes or ()]) != list(range(len(new))):
                ids.setdefault(path, {})[name] = new
    return columns, {**ids}


def with_new_ids(table: pa.Table, ids: NewIds) -> pa.Table:
    """Return a file's rows with new class ids. An id outside the file's classes becomes -2, which is no class."""
    for name, new in ids.items():
        index = table.schema.get_field_index(name)
        chunks = [_mapped(chunk, new) for chunk in table.column(index).chunks]
        table = table.set_column(index, table.field(index), pa.chunked_array(chunks, table.field(index).type))
    return table


def _mapped(column: pa.Array, new: Sequence[int]) -> pa.Array:
    if is_list(column.type):
        ends = np.cumsum([0, *np.asarray(pc.list_value_length(column).fill_null(0))])
        values = _mapped(column.flatten(), new)
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=column.is_null()).cast(column.type)
    old = np.asarray(column.fill_null(UNLABELLED)).astype(np.int64)
    known = np.where((old >= 0) & (old < len(new)), np.asarray([*new, 0])[np.clip(old, 0, len(new))], _NO_CLASS)
    mapped = np.where(old == UNLABELLED, UNLABELLED, known)
    return pa.array(mapped, mask=np.asarray(column.is_null())).cast(column.type)
