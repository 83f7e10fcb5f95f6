"""Read the shards with the package `tfrecord` and the index that its own tool writes."""

import glob

import numpy as np
import tfrecord
from tfrecord.tools.tfrecord2idx import create_index

from scripts.clients.expected import WORK, require_same, rows

ids = []
for path in sorted(glob.glob(f"{WORK}/pad/*-train-*.tfrecord")):
    index = f"{WORK}/{path.rpartition('/')[2]}.idx"
    create_index(path, index)
    for part in range(2):  # the index divides a file among workers
        ids += [row["input_ids"] for row in tfrecord.tfrecord_loader(path, index, {"input_ids": "int"}, (part, 2))]
require_same("input_ids", np.stack(ids), rows("pad")["input_ids"])
print(f"{len(ids)} rows, each file by its index in two parts")
