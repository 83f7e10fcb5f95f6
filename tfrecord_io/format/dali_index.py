"""NVIDIA DALI's index of a shard: where each record begins and how many bytes it takes, as text.

    index/NAME-SPLIT-00000-of-00012.tfrecord.idx      0 1187
                                                      1187 1203
                                                      2390 1187      a line for each record: offset, size with its frame

The same bytes as `tfrecord2idx` of the nvidia-dali package writes. `fn.readers.tfrecord(path=..., index_path=...)`
needs one for each shard. It is there if the build was asked for it, which the manifest's options say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrecord_io.format import record_index

__all__ = ["asked_for", "dump", "file_name"]


def file_name(shard_name: str) -> str:
    """The path of a shard's index, relative to the dataset's folder."""
    return f"{record_index.FOLDER}/{shard_name}.idx"


def asked_for(options: Mapping[str, Any]) -> bool:
    """Return whether a manifest's options say that each shard has such an index."""
    found = options.get("index")
    return isinstance(found, list) and "dali" in found


def dump(record_bytes: np.ndarray) -> bytes:
    """Return the index of records of these sizes in bytes, with their frames, int64 [n]."""
    pairs = zip((np.cumsum(record_bytes) - record_bytes).tolist(), record_bytes.tolist(), strict=True)
    return "".join(f"{start} {size}\n" for start, size in pairs).encode()
