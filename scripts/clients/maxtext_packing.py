"""Pack exported documents with MaxText's pipeline: they stay apart, and targets are the next tokens.

MaxText counts every target that is no padding, so the last token of a document also predicts the next document's first
one. Our causal objective does not. All other targets and weights are equal.
"""

import contextlib
import glob
import sys
from types import SimpleNamespace

import grain
import numpy as np
import pyarrow.parquet as pq

with contextlib.redirect_stdout(sys.stderr):  # says that it runs without Google Cloud
    from maxtext.input_pipeline import data_processing_utils, input_pipeline_utils

LENGTH, ROWS, PAD = 64, 8, 0
CONFIG = SimpleNamespace(
    packing=True,
    max_target_length=LENGTH,
    max_segments_per_seq=None,
    grain_packing_type="first_fit",
    grain_use_elastic_iterator=False,
    grain_file_type="parquet",
)
(path,) = glob.glob(f"{sys.argv[1]}/pad-parquet/*-train-*.parquet")[:1]
data = grain.experimental.ParquetIterDataset(path)
data = data_processing_utils.parse_and_keep_features(data, CONFIG, ["input_ids"], False)
data = data.map(input_pipeline_utils.Rekey(dict.fromkeys(("inputs", "targets"), "input_ids")))
data = data_processing_utils.format_and_batch(data, CONFIG, ROWS, PAD, ("inputs", "targets"), None)
documents, crossing, learned, packed = [], 0, 0, 0
for batch in data:
    ids, segments, positions = (batch[f"inputs{name}"] for name in ("", "_segmentation", "_position"))
    next_ids, next_segments = (np.pad(values, [(0, 0), (0, 1)])[:, 1:] for values in (ids, segments))
    inside = (segments > 0) & (segments == next_segments)
    counted = batch["targets_segmentation"] > 0
    assert (batch["targets"][counted] == next_ids[counted]).all()
    assert counted[inside].all()
    crossing += int((counted & ~inside).sum())
    learned += int(inside.sum())
    for row, marks, places in zip(ids, segments, positions, strict=True):
        packed += marks.max() > 0
        for segment in range(1, marks.max() + 1):
            document = row[marks == segment]
            assert places[marks == segment].tolist() == list(range(len(document)))
            documents.append(document.tolist())
expected = pq.read_table(path)["input_ids"].to_pylist()  # the shards' tokens, see the client `datasets`
assert all(document in expected for document in documents)
assert learned == sum(len(document) - 1 for document in documents)
print(f"{len(documents)} documents in {packed} rows, {learned} targets as ours", end="")
print(f", and {crossing} first tokens of the next document")
