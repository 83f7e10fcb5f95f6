"""Small real datasets on disk: shards written by TensorFlow, and the manifest that belongs to them."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfrecord_io import examples, records
from tfrecord_io import manifest as manifests
from tfrecord_io.format import record_index
from tfrecord_io.manifest import Compression, Ledger, Manifest, Shard, Split, TokenizerFacts
from tfrecord_io.schema import Feature, Role, Schema

LENGTH = 8


def integers(name: str, role: Role, *shape: int) -> Feature:
    return Feature(name=name, dtype="int64", shape=shape, role=role)


IDS = integers("input_ids", "token_ids", LENGTH)
MASK = integers("attention_mask", "attention_mask", LENGTH)
TYPES = integers("token_type_ids", "token_type_ids", LENGTH)
PAD_SCHEMA = Schema((IDS, MASK, TYPES, integers("label", "label"), integers("row", "column")))
CONCAT_SCHEMA = Schema((IDS, integers("num_tokens", "num_tokens")))


def tokenizer_facts(**changes: Any) -> TokenizerFacts:
    """A BERT-like tokenizer: [PAD] 0, [CLS] 2, [SEP] 3, [MASK] 4."""
    facts: dict[str, Any] = {"name": "tiny", "kind": "wordpiece", "vocab_size": 1000, "content_sha256": "0" * 64}
    facts |= {"special_ids": (0, 1, 2, 3, 4), "padding_side": "right", "pad_id": 0, "cls_id": 2, "sep_id": 3}
    return TokenizerFacts(**{**facts, "mask_id": 4, **changes})


def pad_rows(num_rows: int, *, first: int = 0, length: int = LENGTH) -> dict[str, np.ndarray]:
    """Rows [CLS] token... [SEP] [PAD]..., of at least 3 tokens; `row` counts from `first`, labels are its parity."""
    row = np.arange(first, first + num_rows)
    mask = (np.arange(length) < (3 + row % (length - 2))[:, None]).astype(np.int64)
    ids = (5 + (row[:, None] * 7 + np.arange(length)) % 900) * mask
    ids[:, 0] = 2
    ids[np.arange(num_rows), mask.sum(axis=1) - 1] = 3
    types = np.zeros_like(mask)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "label": row % 2, "row": row}


def make_manifest(schema: Schema = PAD_SCHEMA, **changes: Any) -> Manifest:
    """A manifest without splits."""
    fields: dict[str, Any] = {"name": "tiny", "fingerprint": "f" * 64, "schema": schema, "splits": {}}
    fields |= {"layout": {"name": "pad", "max_length": LENGTH}, "tokenizer": tokenizer_facts()}
    return Manifest(**{**fields, **changes})


WriteDataset = Callable[..., pathlib.Path]
Columns = Mapping[str, np.ndarray]


@pytest.fixture(scope="session")
def write_dataset(tmp_path_factory: pytest.TempPathFactory) -> WriteDataset:
    """A function that writes a dataset into a new folder, from the columns of each shard of each split.

    With `index`, uncompressed shards have one.
    """

    def write(
        splits: Mapping[str, Sequence[Columns]],
        *,
        schema: Schema = PAD_SCHEMA,
        tokenizer: TokenizerFacts | None = None,
        compression: Compression = "none",
        index: bool = True,
    ) -> pathlib.Path:
        folder, written = tmp_path_factory.mktemp("dataset"), {}
        for split, shards in splits.items():
            of_split: dict[str, Any] = {"split": split, "count": len(shards), "compression": compression}
            names = [manifests.shard_name(name="tiny", index=at, **of_split) for at in range(len(shards))]
            pairs = zip(names, shards, strict=True)
            made = (write_shard(folder, name, columns, schema=schema, index=index) for name, columns in pairs)
            written[split] = Split(shards=tuple(made))
        stride = record_index.STRIDE if index and compression == "none" else None
        facts = {"tokenizer": tokenizer or tokenizer_facts(), "compression": compression, "index_stride": stride}
        manifest = make_manifest(schema, splits=written, **facts)
        (folder / manifests.FILE_NAME).write_bytes(manifests.dump(manifest))
        return folder

    return write


def write_shard(
    folder: pathlib.Path, name: str, columns: Columns, *, schema: Schema, index: bool = True, **of_length: int
) -> Shard:
    """Write a shard with TensorFlow: compressed if its name says so, otherwise with an index."""
    payloads = examples.encode(columns, schema)
    with tf.io.TFRecordWriter(str(folder / name), "GZIP" if name.endswith(".gz") else "") as writer:
        for payload in payloads:
            writer.write(payload)
    if index and not name.endswith(".gz"):
        (folder / record_index.FOLDER).mkdir(exist_ok=True)
        offsets = record_index.dump(np.diff(payloads.offsets) + records.FRAME_BYTES)
        (folder / record_index.file_name(name)).write_bytes(offsets)
    stored, count = (folder / name).read_bytes(), len(payloads)
    facts: dict[str, Any] = {"num_bytes": len(stored), "num_examples": count, "num_tokens": 0, **of_length}
    facts |= {"sha256": hashlib.sha256(stored).hexdigest(), "ledger": Ledger(rows_in=count, rows_used=count)}
    return Shard(name=name, **facts)


def claim_rows(root: pathlib.Path, num_examples: int) -> None:
    """Make the manifest say that the dataset's one shard has that many records."""
    manifest = manifests.parse((root / manifests.FILE_NAME).read_bytes())
    ((split, (shard,)),) = ((name, of_split.shards) for name, of_split in manifest.splits.items())
    ledger = Ledger(rows_in=num_examples, rows_used=num_examples)
    splits = {split: Split(shards=(dataclasses.replace(shard, num_examples=num_examples, ledger=ledger),))}
    (root / manifests.FILE_NAME).write_bytes(manifests.dump(dataclasses.replace(manifest, splits=splits)))


def pad_shards(*sizes: int, first: int = 0) -> list[dict[str, np.ndarray]]:
    return [pad_rows(size, first=first + sum(sizes[:index])) for index, size in enumerate(sizes)]


def context(*, hosts: int = 1, index: int = 0, replicas: int = 1) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(num_input_pipelines=hosts, input_pipeline_id=index, num_replicas_in_sync=replicas)


def graph_ops(dataset: tf.data.Dataset) -> set[str]:
    graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    return {node.op for node in [*graph.node, *(node for f in graph.library.function for node in f.node_def)]}


def impure(ops: set[str]) -> set[str]:
    return {op for op in ops if "Py" in op or "Generator" in op or "LookupTable" in op}


def digests(elements: Iterable[Any]) -> list[str]:
    return [
        hashlib.sha256(b"".join(leaf.numpy().tobytes() for leaf in tf.nest.flatten(element))).hexdigest()
        for element in elements
    ]
