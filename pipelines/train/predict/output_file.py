"""Writing a table as one file that appears whole or not at all, local or gs://."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from tfrecord_io.errors import OutputError

__all__ = ["require_free", "write"]


def require_free(path: str, *, overwrite: bool) -> None:
    """Raises: OutputError if there is something at `path` that must not be replaced."""
    if tf.io.gfile.isdir(path) or (tf.io.gfile.exists(path) and not overwrite):
        raise OutputError(
            f"--output {path}: it is there already",
            remedy="give another --output" if tf.io.gfile.isdir(path) else "give another --output, or --overwrite",
        )


def write(table: pa.Table, path: str) -> None:
    """Writes Parquet, or JSON lines if the name ends in .jsonl; what was there is replaced in one step.

    Raises: OutputError if it cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "table")
        if path.endswith(".jsonl"):
            _write_lines(table, local)
        else:
            pq.write_table(table, local)
        try:
            _put(local, path)
        except tf.errors.OpError as error:
            raise OutputError(
                f"--output {path}: cannot be written ({error.message})", remedy="check the path and the right to write"
            ) from error


def _put(local: str, path: str) -> None:
    if "://" in path:  # an object appears when all of it has arrived
        tf.io.gfile.copy(local, path, overwrite=True)
        return
    tf.io.gfile.makedirs(os.path.dirname(os.path.abspath(path)))
    unfinished = f"{path}.{os.getpid()}.part"
    try:
        tf.io.gfile.copy(local, unfinished, overwrite=True)
        tf.io.gfile.rename(unfinished, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(unfinished)
        raise


def _write_lines(table: pa.Table, path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=1024):
            rows = batch.to_pylist()
            file.writelines(json.dumps(row, ensure_ascii=False, default=_base64) + "\n" for row in rows)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
