"""Write the rows of a Python object to Parquet parts: a Dataset, IterableDataset, data frame or table.

Objects with the same rows share the folder `object-DIGEST`.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import xxhash

from pipelines.prepare.sources.ingest.ingest import MOST_ROWS, even_tables, part_chunks
from pipelines.prepare.sources.resolve import library, saved_datasets
from tfrecord_io.errors import ConfigError, OutputError, SourceError
from tfrecord_io.shown import first_line

_CORRECT = "correct the code that makes these rows; if their types differ, set the object's features with .cast(...)"


def store(source: Any, home: str) -> tuple[str, tuple[str, ...]]:
    """Write the rows of a dataset, data frame or table to a folder in `home`; return the folder and the split names.

    Raises: ConfigError if `source` is another object; SourceError; OutputError.
    """
    digest = xxhash.xxh3_128()
    try:
        with library.quiet(), tempfile.TemporaryDirectory(prefix=".object-", dir=home) as folder:
            splits = _splits_of(source)
            for split, dataset in splits.items():
                name = f"{split}-00000-of-00001.parquet"
                digest.update(name.encode())
                with open(os.path.join(folder, name), "wb") as file:
                    for chunk in _part(dataset, split):
                        digest.update(chunk)
                        file.write(chunk)
            final = os.path.join(home, f"object-{digest.hexdigest()}")
            os.makedirs(final, exist_ok=True)
            for name in os.listdir(folder):
                os.replace(os.path.join(folder, name), os.path.join(final, name))
    except OSError as error:
        raise OutputError(
            f"{home}: the object's rows cannot be written to this folder ({error.strerror})",
            remedy="free space on its disk, or set TMPDIR to a folder with more space",
        ) from error
    return final, tuple(splits)


def store_saved(path: str, home: str) -> tuple[str, tuple[str, ...]]:
    """Load the dataset that `save_to_disk` wrote to `path`, and write its rows like `store`."""
    with library.quiet() as datasets, library.reading(lambda: path):
        saved = datasets.load_from_disk(path)
    return store(saved, home)


def _splits_of(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping):
        splits = {str(name): _dataset_of(split) for name, split in source.items()}
    else:
        dataset = _dataset_of(source)
        splits = {saved_datasets.own_name(str(dataset.split or "")): dataset}
    if not splits:
        raise library.no_rows("the object")
    library.require_split_names(splits, where="the object")
    return splits


def _dataset_of(source: Any) -> Any:
    import datasets

    if isinstance(source, datasets.IterableDataset):
        return source
    if not isinstance(source, datasets.Dataset):
        return datasets.Dataset(datasets.table.InMemoryTable(_table_of(source)), fingerprint="object")
    if source.format["type"] == "custom":
        raise ConfigError(
            "the Dataset has a transform, which applies only when rows are accessed and would be ignored",
            remedy="apply it with dataset.map(...), or remove it with dataset.reset_format()",
        )
    return source.with_format(None)


def _table_of(source: Any) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if type(source).__module__.startswith("pandas") and type(source).__name__ == "DataFrame":
        try:
            return pa.Table.from_pandas(source, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:  # for example, two columns with the same name
            cause = f"the data frame cannot become an Arrow table: {first_line(error)}"
            raise SourceError(cause, remedy="give each column one type of value, and a unique name") from error
    if hasattr(source, "to_arrow") and isinstance(table := source.to_arrow(), pa.Table):  # such as a polars DataFrame
        return table
    raise ConfigError(
        f"{type(source).__module__}.{type(source).__qualname__} is not a dataset",
        remedy="give a path, a Dataset or IterableDataset of `datasets`, a dict of them by split, a pandas or polars "
        "DataFrame, or a pyarrow.Table",
    )


def _part(dataset: Any, split: str) -> Iterator[bytes]:
    rows = 0

    def tables(types: pa.Schema) -> Iterator[pa.Table]:
        nonlocal rows
        for table in dataset.with_format("arrow").iter(MOST_ROWS):
            # The size of a table must not depend on the object's own chunks.
            yield pa.Table.from_arrays(table.combine_chunks().columns, schema=types)
            rows += table.num_rows

    where = f"split {split!r} of the object"
    with library.reading(lambda: f"{where}, after row {rows:,}", remedy=_CORRECT):
        if dataset.features is None:
            dataset = dataset.cast(library.features_of_rows({where: dataset}))
        types = dataset.features.arrow_schema
        yield from part_chunks(types, even_tables(tables(types)))
