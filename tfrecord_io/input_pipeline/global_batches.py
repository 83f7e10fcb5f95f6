"""Batches of serialized records in the global order: a host's columns of every global batch.

    training     streams of all parts ─► the host's rows of a step, by column        (global_records, batch_columns)
    evaluation   all records in order ─► global batches ─► the host's columns, then fill rows at the very end

An evaluation is read in order, so there is nothing to gain from reading blocks: each host reads all records, and parses
its own. That costs 1 us for each record of the others.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfrecord_io.input_pipeline import global_records, input_records
from tfrecord_io.input_pipeline.global_records import Stream
from tfrecord_io.input_pipeline.input_plan import Host
from tfrecord_io.input_pipeline.input_source import Request
from tfrecord_io.ordering import settings
from tfrecord_io.ordering.batch_columns import BatchColumns

__all__ = ["evaluation", "steps_left", "training"]


def training(request: Request, columns: range) -> tf.data.Dataset:
    """Serialized records, string [n] for any n, without end, from the request's first step on.

    Raises: ReaderError if records are to be read in the middle of shards that have no index, or an index is missing.
        CorruptRecordError if one is damaged.
    """
    rates = {source.name: source.rate for source in request.sources}
    streams = tuple(
        _stream(request, at, batches=batches, columns=columns)
        for at, batches in enumerate(settings.batch_columns(rates, global_batch_size=request.global_batch_size))
    )
    if len(streams) == 1:
        return streams[0].rows(request.start_step).map(lambda serialized, _: serialized)
    steps = tuple(_by_step(stream, request.start_step) for stream in streams)

    def mixed(*parts: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        serialized, column = (tf.concat(each, axis=0) for each in zip(*parts, strict=True))
        return tf.gather(serialized, tf.argsort(column))

    return tf.data.Dataset.zip(steps).map(mixed, num_parallel_calls=tf.data.AUTOTUNE)


def evaluation(request: Request, columns: range) -> tf.data.Dataset:
    """Serialized records, string [n], every row once, then fill rows, from the request's first step on."""
    source, batch = request.sources[0], request.global_batch_size
    num_rows = sum(source.rows)
    num_steps = -(-num_rows // batch)
    first_row = (num_steps - steps_left(request)) * batch
    records = input_records.evaluation_records(source, host=Host(), first_row=min(first_row, num_rows))
    fill_rows = num_steps * batch - max(first_row, num_rows)
    fill = tf.data.Dataset.from_tensors(input_records.filler(request.manifest)).repeat(fill_rows)
    batches = records.concatenate(fill).batch(batch, drop_remainder=True)
    return batches.map(lambda serialized: serialized[columns.start : columns.stop])


def steps_left(request: Request) -> int:
    """Global batches of an evaluation, from the request's first step on."""
    num_steps = -(-sum(request.sources[0].rows) // request.global_batch_size)
    return max(0, num_steps - request.start_step)


def _stream(request: Request, at: int, *, batches: BatchColumns, columns: range) -> Stream:
    source = request.sources[at]
    order = settings.global_order(
        source.shards,
        compression=source.compression,
        seed=source.seed,
        shuffle=request.shuffle,
        batches=batches,
    )
    in_memory = settings.fits_in_memory(source.shards, compression=source.compression)
    if not in_memory:
        global_records.require_index(source)
        global_records.warn_of_large_ranges(source)
    return Stream(source=source, order=order, in_memory=in_memory, first=columns.start, last=columns.stop)


def _by_step(stream: Stream, step: int) -> tf.data.Dataset:
    """Records and columns, step by step."""
    counts_P = stream.order.batches.counts(stream.first, stream.last)
    return stream.rows(step).rebatch(np.roll(counts_P, -(step % len(counts_P))), drop_remainder=True)
