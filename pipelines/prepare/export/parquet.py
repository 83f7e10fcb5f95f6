"""Export to Parquet, rows without padding, for `datasets`, TRL, axolotl and every reader of Arrow.

`input_ids` and the like are list<int32>; names and types are those of packed rows in TRL (`trl/data_utils.py`,
`pack_dataset`) and of pre-tokenized datasets in axolotl (`axolotl/utils/data/wrappers.py`,
`_is_dataset_already_tokenized`). Class names stand in the file's metadata under `huggingface`, as
`datasets.Features.from_arrow_schema` reads them; the card names the files of each split.

Values are encoded by byte stream split and zstd: 106 million tokens a second at 1.4 bytes each. Plain values with zstd
reach 61 million at 1.8 bytes, uncompressed 190 million at 4 bytes (measured, lists of 30,000 ids). pyarrow reads the
encoding since release 17.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.export import token_columns
from pipelines.prepare.export.export_settings import ExportSettings
from pipelines.prepare.export.token_columns import ExportedColumn
from tfrecord_io.manifest import Manifest

CARD = "README.md"
# Approximate number of tokens in a row group: 8 MB of token ids.
_GROUP_TOKENS = 1 << 21


def files(
    batches: Iterator[Mapping[str, np.ndarray]], manifest: Manifest, settings: ExportSettings
) -> dict[str, pa.Buffer]:
    """Encode batches as a Parquet file, by its suffix. Row groups have a fixed size, so that batches change no byte."""
    sink = pa.BufferOutputStream()
    group_rows = max(1, _GROUP_TOKENS // manifest.row_length)
    with contextlib.ExitStack() as closing:
        writer, rest = None, None
        for columns in _rows(batches, manifest, settings):
            table = _table(columns, manifest, settings)
            writer = writer or closing.enter_context(_writer(sink, table.schema))
            rest = table if rest is None else pa.concat_tables([rest, table])
            whole = len(rest) - len(rest) % group_rows
            for first in range(0, whole, group_rows):
                writer.write_table(rest.slice(first, group_rows).combine_chunks())
            rest = rest.slice(whole)
        if writer is not None and rest is not None and len(rest):
            writer.write_table(rest.combine_chunks())
    return {".parquet": sink.getvalue()}


def _writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    numbers = []
    for field in schema:
        path, kind = field.name, field.type
        while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if pa.types.is_int32(kind) or pa.types.is_int64(kind) or pa.types.is_float32(kind):
            numbers.append(path)
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        use_byte_stream_split=numbers,
        write_statistics=False,  # nobody filters by ranges of token ids, and they cost a tenth of the time
    )


def names(manifest: Manifest, settings: ExportSettings) -> list[str]:
    """Return the names of the exported columns before any is renamed or dropped."""
    nothing = {each.name: np.zeros((0, *each.shape), each.array_dtype) for each in manifest.schema.features}
    return list(next(iter(_rows([nothing], manifest, settings))))


def _rows(
    batches: Iterable[Mapping[str, np.ndarray]], manifest: Manifest, settings: ExportSettings
) -> Iterator[dict[str, ExportedColumn]]:
    """Yield columns without padding, with a row for each record, or for each document with --documents."""
    if settings.documents:
        return token_columns.documents(batches, manifest, extra=settings.extra)
    return (token_columns.unpadded(columns, manifest, extra=settings.extra) for columns in batches)


def card(manifest: Manifest, splits: Mapping[str, Sequence[str]]) -> bytes:
    """Return a dataset card that names the files of each split."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split, paths in splits.items():
        lines += [f"  - split: {json.dumps(split)}", "    path:", *(f"    - {json.dumps(path)}" for path in paths)]
    rows = f"rows of at most {manifest.row_length} tokens without padding"
    text = f"Token ids of {manifest.tokenizer.name}, {rows}, exported by prep-tfrecords from its dataset"
    return "\n".join([*lines, "---", "", f"# {manifest.name}", "", f"{text} `{manifest.name}`.", ""]).encode()


def _table(found: Mapping[str, ExportedColumn], manifest: Manifest, settings: ExportSettings) -> pa.Table:
    chosen = settings.chosen(found)
    table = pa.table({new: _array(found[old]) for old, new in chosen.items()})
    if manifest.label_names is None:
        return table
    # The features of `datasets` for columns of class ids, with the names of the classes.
    kind = {"names": list(manifest.label_names), "_type": "ClassLabel"}
    label = manifest.schema.with_role("label")
    classes: dict[str, Any] = {}
    if label is not None and not label.shape and label.name in chosen:
        classes = {chosen[label.name]: kind}
    elif manifest.schema.with_role("token_labels") is not None and "labels" in chosen:
        classes = {chosen["labels"]: {"feature": kind, "_type": "List"}}
    return table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": classes}})} if classes else None
    )


def _array(column: ExportedColumn) -> pa.Array:
    if column.counts is not None:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(column.counts)])
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(column.values))
    # Objects are text or bytes.
    array = pa.array(np.ascontiguousarray(column.values).reshape(-1))
    for size in reversed(column.values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
