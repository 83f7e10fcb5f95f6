"""Read rows by number, without TensorFlow: for Grain, PyTorch and plain Python.

    data = random_access.open("gs://bucket/wiki")       reads manifest.json, lists the folder
    rows = data["train"]                                a sequence
    rows[5]                                             {"input_ids": int64 [L], ...}
    rows[10:20], rows.batch(indices)                    {"input_ids": int64 [N, L], ...}

    grain.MapDataset.source(rows).seed(0).shuffle().batch(64)
    torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True)

Needs Numba, and fsspec for gs://.
"""

from tfrecord_io.random_access.combined import GlobalBatches, global_batches
from tfrecord_io.random_access.rows import Data, Row, Rows, open

__all__ = ["Data", "GlobalBatches", "Row", "Rows", "global_batches", "open"]
