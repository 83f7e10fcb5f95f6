"""Read the shards with SeqIO's TFExampleDataSource."""

import numpy as np
import seqio
import tensorflow as tf

from scripts.clients.expected import WORK, require_same, rows

features = {
    name: tf.io.FixedLenFeature([64] if name == "input_ids" else [], tf.int64) for name in ("input_ids", "label")
}
source = seqio.TFExampleDataSource(
    {"train": f"{WORK}/pad/*-train-*.tfrecord"}, features, cycle_length=1, block_length=1
)
shards = source.list_shards("train")
ids = []
for index in range(len(shards)):
    info = seqio.ShardInfo(index=index, num_shards=len(shards))
    ids += [row["input_ids"].numpy() for row in source.get_dataset("train", shuffle=False, shard_info=info)]
require_same("input_ids", np.stack(ids), rows("pad")["input_ids"])
print(f"{len(ids)} rows of {len(shards)} shards")
