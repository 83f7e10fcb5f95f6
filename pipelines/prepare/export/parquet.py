"""Export to Parquet files of rows without padding, for `datasets`, TRL, axolotl and every reader of Arrow.

Names and types follow packed rows in TRL (`trl/data_utils.py`, `pack_dataset`) and pre-tokenized datasets in axolotl
(`axolotl/utils/data/wrappers.py`, `_is_dataset_already_tokenized`): `input_ids` is list<int32>. The file's metadata
contains class names under `huggingface`, where `datasets.Features.from_arrow_schema` reads them.

Values are encoded by byte stream split and zstd. Plain values with zstd would be slower to write, and larger
(measured). pyarrow can read the encoding since 17.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.prepare.export import token_columns
from pipelines.prepare.export.export_record import ExportedFile
from pipelines.prepare.export.token_columns import ExportedColumn
from pipelines.prepare.export.writer import Columns, Writer
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Shard


class ParquetWriter(Writer):
    """Writer of Parquet files and a dataset card. `group_tokens`: approximate number of tokens in a row group."""

    packages, suffix, group_tokens = ("pyarrow",), ".parquet", 1 << 21

    def check(self) -> None:
        schema, settings = self._manifest.schema, self._settings
        has_documents = bool({"segment_ids", "num_tokens"} & {feature.role for feature in schema.features})
        has_pairs = schema.with_role("token_ids") is None
        whole_rows = "each row is one document, which is exported without padding anyway"
        for flag, is_wrong, cause in (
            ("--documents", settings.documents and not has_documents, whole_rows),
            ("--add", settings.extra and has_pairs, "its columns have other names"),
            ("--join-prompts", settings.join_prompts and not has_pairs, "its rows are not preference pairs"),
        ):
            if is_wrong:
                layout = self._manifest.layout["name"]
                raise ConfigError(f"{flag} with layout {layout}: {cause}", remedy=f"leave {flag} out")
        if not settings.documents:
            features = schema.features
            no_rows = {feature.name: np.zeros((0, *feature.shape), feature.array_dtype) for feature in features}
            settings.chosen(next(iter(self._rows([no_rows]))))

    def files(self, batches: Iterator[Columns]) -> dict[str, pa.Buffer]:
        sink = pa.BufferOutputStream()
        # Row groups of a fixed size, so that batch sizes do not affect the file.
        group_rows = max(1, self.group_tokens // self._manifest.row_length)
        with contextlib.ExitStack() as closing:
            writer, rest = None, None
            for columns in self._rows(batches):
                table = self._table(columns)
                writer = writer or closing.enter_context(_opened(sink, table.schema))
                rest = table if rest is None else pa.concat_tables([rest, table])
                whole = len(rest) - len(rest) % group_rows
                for first in range(0, whole, group_rows):
                    writer.write_table(rest.slice(first, group_rows).combine_chunks())
                rest = rest.slice(whole)
            if writer is not None and rest is not None and len(rest):
                writer.write_table(rest.combine_chunks())
        return {f"{{}}{self.suffix}": sink.getvalue()}

    def files_beside(self, exported: Mapping[str, Sequence[tuple[Shard, ExportedFile]]]) -> dict[str, bytes]:
        """Return a dataset card that lists the files of each split.

        Its digest keeps `datasets` from returning cached rows of an earlier export of the same name (5.2.0, `load.py`).
        """
        digest = hashlib.sha256("".join(file.sha256 for pairs in exported.values() for _, file in pairs).encode())
        manifest, lines = self._manifest, ["---", "configs:", "- config_name: default"]
        lines += [f"  description: sha256 of the files' digests {digest.hexdigest()}", "  data_files:"]
        for split, pairs in exported.items():
            paths = (f"    - {json.dumps(file.name)}" for _, file in pairs)
            lines += [f"  - split: {json.dumps(split)}", "    path:", *paths]
        rows = f"rows of at most {manifest.row_length} tokens without padding"
        text = f"Token ids of {manifest.tokenizer.name}, {rows}, exported by prep-tfrecords from its dataset"
        lines += ["---", "", f"# {manifest.name}", "", f"{text} `{manifest.name}`.", ""]
        return {"README.md": "\n".join(lines).encode()}

    def _rows(self, batches: Iterable[Columns]) -> Iterator[dict[str, ExportedColumn]]:
        manifest, extra = self._manifest, self._settings.extra
        if self._settings.documents:
            return token_columns.documents(batches, manifest, extra=extra)
        join_prompts = self._settings.join_prompts
        return (token_columns.unpadded(batch, manifest, extra=extra, join_prompts=join_prompts) for batch in batches)

    def _table(self, columns: Mapping[str, ExportedColumn]) -> pa.Table:
        chosen, manifest = self._settings.chosen(columns), self._manifest
        table = pa.table({new: array(columns[old]) for old, new in chosen.items()})
        if manifest.label_names is None:
            return table
        kind = {"names": list(manifest.label_names), "_type": "ClassLabel"}
        label = manifest.schema.with_role("label")
        classes: dict[str, Any] = {}
        if label is not None and not label.shape and label.name in chosen:
            classes = {chosen[label.name]: kind}
        elif manifest.schema.with_role("token_labels") is not None and "labels" in chosen:
            classes = {chosen["labels"]: {"feature": kind, "_type": "List"}}
        described = {"huggingface": json.dumps({"info": {"features": classes}})}
        return table.replace_schema_metadata(described if classes else None)


def _opened(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
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
        write_statistics=False,  # statistics cost a tenth of the time
    )


def array(column: ExportedColumn) -> pa.Array:
    """Return a column as an Arrow array; a ragged column becomes an array of lists."""
    if column.counts is not None:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(column.counts)])
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(column.values))
    # Values of type object are text or bytes.
    array = pa.array(np.ascontiguousarray(column.values).reshape(-1))
    for size in reversed(column.values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
