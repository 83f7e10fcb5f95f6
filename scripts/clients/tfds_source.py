"""Read the ArrayRecord export with TFDS, through `builder_from_directory`."""

import numpy as np
import tensorflow_datasets as tfds

from scripts.clients.expected import WORK, require_same, rows

builder = tfds.builder_from_directory(f"{WORK}/pad-arrayrecord")
source = builder.as_data_source("train")
for name, values in rows("pad").items():
    require_same(name, np.stack([row[name] for row in source]), values)
print(f"data source of {len(source)} rows, classes {builder.info.features['label'].names}")
