"""Source rows of all records of a split, computed at once.

each row is one record, none is left out by a filter      the plan, the lists of rejected rows, the seed
otherwise (filters, --hold-out, --bucket-lengths)         the source too, as `trace` needs it
records made of several rows (concat, pack)               no answer: see `trace`
"""

from __future__ import annotations

import itertools

import numpy as np

from pipelines.prepare import storage
from pipelines.prepare.audit import reopened_dataset
from pipelines.prepare.audit.trace import Tracer, without_rejected
from pipelines.prepare.dataset import plan_files
from pipelines.prepare.dataset.job import rejected_path
from pipelines.prepare.dataset.own_files import generations_of
from pipelines.prepare.layouts import permuted
from pipelines.prepare.shards import shard_writer
from tfrecord_io.errors import FormatError, ReaderError
from tfrecord_io.manifest import Manifest

__all__ = ["record_rows"]


def record_rows(root: str, manifest: Manifest, split: str) -> np.ndarray:
    """Return the number of each record's row in the source's split, int64 [N], records in the order of their shards.

    Raises: PrepError of the kind that says why it cannot be known.
    """
    schema = manifest.schema
    if schema.with_role("num_tokens") is not None or schema.with_role("segment_ids") is not None:
        raise ReaderError(
            f"{root}: a record has tokens of several rows",
            remedy="`prep-tfrecords trace` tells which rows are in a record",
        )
    shards = manifest.splits[split].shards
    if manifest.bucket_lengths or any(shard.ledger.left_out for shard in shards):
        tracer = Tracer(reopened_dataset.reopen(root, manifest))
        filled = [index for index, shard in enumerate(shards) if shard.num_examples]
        return np.concatenate([tracer.first_rows(split=split, shard=index) for index in filled])
    return np.concatenate(_from_plan(root, manifest, split))


def _from_plan(root: str, manifest: Manifest, split: str) -> list[np.ndarray]:
    found = []
    shards, seed = manifest.splits[split].shards, int(manifest.options["seed"])
    planned = itertools.chain.from_iterable(
        plan_files.rows_of_shards(root, generation.fingerprint, split)
        for generation in generations_of(manifest)
        if split in generation.rows
    )
    for index, rows in enumerate(planned):
        if rejected := sum(shards[index].ledger.unusable.values()):
            rows = without_rejected(rows, path=storage.join(root, rejected_path(split, index)), rejected=rejected)
        rng = shard_writer.shard_rng(seed, split=split, index=index) if manifest.options["shuffle"] else None
        rows = rows[permuted(len(rows), rng)]
        if len(rows) != shards[index].num_examples:
            raise FormatError(
                f"{shards[index].name}: {shards[index].num_examples} records of {len(rows)} rows, expected one of each"
            )
        found.append(rows)
    return found
