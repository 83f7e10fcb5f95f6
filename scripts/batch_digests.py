"""Print digests of a dataset's batches as JSON: `python scripts/batch_digests.py OUT`.

Equal digests with two releases of TensorFlow mean that the reader returns equal batches (scripts/check_reader_alone).
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrecord_io import objectives, random_access, reader

BATCHES = 8
ROWS = 16


def main(root: str) -> None:
    data = reader.open(root)
    train: dict[str, dict[str, Any]] = {
        "training": {},
        "training, another seed": {"seed": 7},
        "training from step 5 on": {"start_step": 5},
        "classification": {"objective": objectives.classification()},
        "masked tokens": {"objective": objectives.gathered_masked_lm(0.15)},
    }
    digests = {
        name: digest(data.dataset("train", global_batch_size=ROWS, training=True, **options))
        for name, options in train.items()
    }
    digests["evaluation"] = digest(data.dataset("validation", global_batch_size=ROWS))
    rows = random_access.open(root)["train"]
    digests["random access"] = digest([rows[start : start + ROWS] for start in range(0, BATCHES * ROWS, ROWS)])
    print(json.dumps({"tensorflow": tf.__version__, "numpy": np.__version__, "digests": digests}, indent=2))


def digest(batches: Iterable[Any]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values of the first eight batches."""
    sha256 = hashlib.sha256()
    for batch in itertools.islice(batches, BATCHES):
        arrays = tf.nest.map_structure(np.asarray, batch)
        sha256.update(repr(tf.nest.map_structure(lambda array: (str(array.dtype), array.shape), arrays)).encode())
        for array in tf.nest.flatten(arrays):
            sha256.update(array.tobytes())
    return sha256.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1])
