"""Small real datasets on disk: shards written by TensorFlow, and the manifest that belongs to them."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pytest
import tensorflow as tf

from tests.support import frames
from tfrecord_io import examples, records
from tfrecord_io import manifest as manifests
from tfrecord_io.format import record_index
from tfrecord_io.manifest import Compression, Ledger, Manifest, Shard, Split, TokenizerFacts
from tfrecord_io.schema import Feature, Schema

LENGTH = 8
PAD_SCHEMA = Schema(
    (
        Feature(name="input_ids", dtype="int64", shape=(LENGTH,), role="token_ids"),
        Feature(name="attention_mask", dtype="int64", shape=(LENGTH,), role="attention_mask"),
        Feature(name="token_type_ids", dtype="int64", shape=(LENGTH,), role="token_type_ids"),
        Feature(name="label", dtype="int64", shape=(), role="label"),
        Feature(name="row", dtype="int64", shape=(), role="column"),
    )
)
CONCAT_SCHEMA = Schema(
    (
        Feature(name="input_ids", dtype="int64", shape=(LENGTH,), role="token_ids"),
        Feature(name="num_tokens", dtype="int64", shape=(), role="num_tokens"),
    )
)


def tokenizer_facts(**changes: Any) -> TokenizerFacts:
    """A BERT-like tokenizer: [PAD] 0, [CLS] 2, [SEP] 3, [MASK] 4."""
    facts: dict[str, Any] = {
        "name": "tiny",
        "kind": "wordpiece",
        "vocab_size": 1000,
        "content_sha256": "0" * 64,
        "special_ids": (0, 1, 2, 3, 4),
        "padding_side": "right",
        "pad_id": 0,
        "cls_id": 2,
        "sep_id": 3,
        "mask_id": 4,
    }
    return TokenizerFacts(**{**facts, **changes})


def pad_rows(num_rows: int, *, first: int = 0) -> dict[str, np.ndarray]:
    """Rows [CLS] token... [SEP] [PAD]..., of 3 to LENGTH tokens; `row` counts from `first`, the label is its parity."""
    row = np.arange(first, first + num_rows)
    mask = (np.arange(LENGTH) < (3 + row % (LENGTH - 2))[:, None]).astype(np.int64)
    ids = (5 + (row[:, None] * 7 + np.arange(LENGTH)) % 900) * mask
    ids[:, 0] = 2
    ids[np.arange(num_rows), mask.sum(axis=1) - 1] = 3
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
        "label": row % 2,
        "row": row,
    }


def make_manifest(schema: Schema = PAD_SCHEMA, **changes: Any) -> Manifest:
    """A manifest without splits."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "fingerprint": "f" * 64,
        "schema": schema,
        "layout": {"name": "pad", "max_length": LENGTH},
        "tokenizer": tokenizer_facts(),
        "splits": {},
    }
    return Manifest(**{**fields, **changes})


class WriteDataset(Protocol):
    """Writes a dataset and returns its folder; `splits` maps a split's name to the columns of each of its shards.

    index: whether uncompressed shards have one.
    """

    def __call__(
        self,
        splits: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
        *,
        schema: Schema = ...,
        tokenizer: TokenizerFacts | None = ...,
        compression: Compression = ...,
        index: bool = ...,
    ) -> pathlib.Path: ...


@pytest.fixture(scope="session")
def write_dataset(tmp_path_factory: pytest.TempPathFactory) -> WriteDataset:
    """A function that writes a dataset into a folder of its own."""

    def write(
        splits: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
        *,
        schema: Schema = PAD_SCHEMA,
        tokenizer: TokenizerFacts | None = None,
        compression: Compression = "none",
        index: bool = True,
    ) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("dataset")
        written = {
            name: _write_split(folder, name, shards, schema=schema, compression=compression)
            for name, shards in splits.items()
        }
        manifest = make_manifest(
            schema,
            splits=written,
            tokenizer=tokenizer or tokenizer_facts(),
            compression=compression,
            index_stride=record_index.STRIDE if index and compression == "none" else None,
        )
        if manifest.index_stride is not None:
            _write_indexes(folder, manifest)
        (folder / manifests.FILE_NAME).write_bytes(manifests.dump(manifest))
        return folder

    return write


def _write_split(
    folder: pathlib.Path,
    name: str,
    shards: Sequence[Mapping[str, np.ndarray]],
    *,
    schema: Schema,
    compression: Compression,
) -> Split:
    written = []
    for index, columns in enumerate(shards):
        file_name = manifests.shard_name(
            name="tiny", split=name, index=index, count=len(shards), compression=compression
        )
        payloads = examples.encode(columns, schema)
        options = tf.io.TFRecordOptions(compression_type="GZIP" if compression == "gzip" else "")
        with tf.io.TFRecordWriter(str(folder / file_name), options) as writer:
            for payload in payloads:
                writer.write(payload)
        stored = (folder / file_name).read_bytes()
        written.append(
            Shard(
                name=file_name,
                num_bytes=len(stored),
                num_examples=len(payloads),
                num_tokens=0,
                sha256=hashlib.sha256(stored).hexdigest(),
                ledger=Ledger(rows_in=len(payloads), rows_used=len(payloads)),
            )
        )
    return Split(shards=tuple(written))


def _write_indexes(folder: pathlib.Path, manifest: Manifest) -> None:
    (folder / record_index.FOLDER).mkdir()
    for shard in (shard for split in manifest.splits.values() for shard in split.shards):
        payloads = frames.messages_of((folder / shard.name).read_bytes(), place=shard.name)
        index = record_index.dump(np.diff(payloads.offsets) + records.FRAME_BYTES)
        (folder / record_index.file_name(shard.name)).write_bytes(index)


def pad_shards(*sizes: int) -> list[dict[str, np.ndarray]]:
    """Shards of these sizes whose rows are numbered through."""
    return [pad_rows(size, first=sum(sizes[:index])) for index, size in enumerate(sizes)]


def context(*, hosts: int = 1, index: int = 0, replicas: int = 1) -> tf.distribute.InputContext:
    """Host `index` of `hosts`, of `replicas` replicas in all."""
    return tf.distribute.InputContext(num_input_pipelines=hosts, input_pipeline_id=index, num_replicas_in_sync=replicas)


def graph_ops(dataset: tf.data.Dataset) -> set[str]:
    """The operations in a dataset's graph as it would be sent to another machine."""
    graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    return {node.op for node in [*graph.node, *(node for f in graph.library.function for node in f.node_def)]}


def impure(ops: set[str]) -> set[str]:
    """Those that need this process."""
    return {op for op in ops if "Py" in op or "Generator" in op or "LookupTable" in op}
