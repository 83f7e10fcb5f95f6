"""Export of packed rows to Parquet files for Megatron-Bridge's `GPTSFTPackedParquetDataset`.

docs/how-to/export.md describes the columns. Source: NVIDIA-NeMo/Megatron-Bridge 0.6,
`megatron/bridge/data/packing/parquet.py` (the columns) and `algorithms.py` (`fill_packing_strategy`, which shifts each
mask). Row groups are small, because the reader decodes a whole group for each shuffled row.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from pipelines.prepare.export import parquet, token_columns
from pipelines.prepare.export.token_columns import IGNORED, ExportedColumn
from pipelines.prepare.export.writer import OF_DOCUMENTS, Columns
from tfrecord_io.errors import ConfigError


class MegatronBridgeWriter(parquet.ParquetWriter):
    suffix, group_tokens = ".idx.parquet", 1 << 18

    def check(self) -> None:
        if self._manifest.schema.with_role("segment_ids") is None:
            cause = f"--to megatron-bridge with layout {self._manifest.layout['name']}: its rows are not packed"
            raise ConfigError(cause, remedy="build with --layout chat --pack-rows, or export to parquet")
        self.require_held((*OF_DOCUMENTS, "loss_mask"))

    def _rows(self, batches: Iterable[Columns]) -> Iterator[dict[str, ExportedColumn]]:
        for columns in batches:
            unpadded = token_columns.unpadded(columns, self._manifest, extra=("labels",))
            ids, documents = unpadded["input_ids"], unpadded["seq_lengths"]
            assert ids.counts is not None, "columns of tokens are ragged"
            assert documents.counts is not None, "columns of document lengths are ragged"
            ends = np.cumsum(documents.values)
            learned = np.append(unpadded["labels"].values[1:] != IGNORED, False)
            learned[ends - 1] = False
            row_begins = np.repeat(np.cumsum(ids.counts) - ids.counts, documents.counts)
            starts = (ends - documents.values - row_begins).astype(np.int32)
            yield {
                "input_ids": ids,
                "seq_start_id": ExportedColumn(starts, documents.counts),
                "loss_mask": ExportedColumn(learned.astype(np.int8), ids.counts),
            }

    def _table(self, columns: Mapping[str, ExportedColumn]) -> pa.Table:
        return pa.table({name: parquet.array(column) for name, column in columns.items()})
