"""Build the reader's graph, from a split's shards to batches of features."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfrecord_io.input_pipeline import global_records, host_plan, record_order
from tfrecord_io.input_pipeline.host_plan import Host
from tfrecord_io.input_pipeline.record_order import OBJECTIVE, random_stream
from tfrecord_io.input_pipeline.shard_reading import InputRequest
from tfrecord_io.manifest import Manifest
from tfrecord_io.mixing import mixing_plan
from tfrecord_io.objectives.base import token_mask
from tfrecord_io.objectives.tensor_ops import TensorOps, by_row, in_graph
from tfrecord_io.schema import Feature


def build(request: InputRequest, host: Host) -> tf.data.Dataset:
    """Return one host's dataset for the arguments of `input_fn`. An element has the rows of one replica."""
    batch_rows = host_plan.element_rows(request.global_batch_size, host)
    first, columns = request.start_step * host.replicas, host.columns(request.global_batch_size)
    num_rows = None
    if not request.training:
        batches, num_rows = _evaluation_batches(request, batch_rows, host=host)
    elif request.order == "hosts":
        batches = _training_batches(request, batch_rows, host=host, first=first)
    else:
        batches = global_records.training(request, columns).rebatch(batch_rows, drop_remainder=True)
    if request.training:
        # TensorFlow cannot infer the cardinality.
        batches = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        if request.end_step is not None:
            batches = batches.take((request.end_step - request.start_step) * host.replicas)

    def element(index: tf.Tensor, serialized_B: tf.Tensor) -> Any:
        if request.order == "hosts":
            first_row, seed = index * batch_rows, random_stream(request.seed, OBJECTIVE, host.index, index)
        else:
            step, column = index // host.replicas, columns.start + index % host.replicas * batch_rows
            first_row = step * request.global_batch_size + column
            seed = by_row(random_stream(request.seed, OBJECTIVE, step), first_row=column)
        serialized_B = tf.ensure_shape(serialized_B, [batch_rows])
        features = _parse(serialized_B, request.manifest, keep=request.keep)
        # Fill rows come after all real ones.
        row_B = first_row + tf.range(batch_rows, dtype=tf.int64)
        ones_B = tf.ones([batch_rows], tf.float32)
        features[host_plan.WEIGHT] = ones_B if num_rows is None else tf.cast(row_B < num_rows, tf.float32)
        if request.objective is None:
            return features
        result = request.objective(features, seed=seed)
        return (*result, {name: features[name] for name in request.keep}) if request.keep else result

    options = tf.data.Options()
    options.deterministic = True
    # A strategy cannot shard by file, since it does not see the files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    elements = batches.enumerate(start=first).map(element, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.prefetch(tf.data.AUTOTUNE).with_options(options)


def _training_batches(request: InputRequest, batch_rows: int, *, host: Host, first: int) -> tf.data.Dataset:
    schedule = mixing_plan.schedule(
        request.rates, rows=batch_rows, elements=host.replicas, host=host.index, hosts=host.count
    )
    batches = record_order.training_batches(
        request.sources, host=host, shuffle=request.shuffle, stages=schedule.from_element(first)
    )
    if len(request.sources) == 1:
        return batches

    def mix(index: tf.Tensor, serialized_B: tf.Tensor) -> tf.Tensor:
        stream = random_stream(request.seed, record_order.MIXTURE_ORDER, host.index, index)
        return tf.random.experimental.stateless_shuffle(serialized_B, stream)

    return batches.enumerate(start=first).map(mix, num_parallel_calls=tf.data.AUTOTUNE)


def _evaluation_batches(request: InputRequest, batch_rows: int, *, host: Host) -> tuple[tf.data.Dataset, int]:
    source, size = request.sources[0], request.global_batch_size
    steps = host_plan.evaluation_steps(source.num_rows, global_batch_size=size)
    shared = request.order == "global"
    # In the global order each host reads all records, at 1 us per record.
    reads, read_rows = (Host(), size) if shared else (host, batch_rows)
    first, last = host_plan.share(source.num_rows, reads, epoch=0)
    rows, num_batches = last - first, steps * reads.replicas
    first_row = min(request.start_step * reads.replicas, num_batches) * read_rows
    records = record_order.evaluation_records(source, host=reads, first_row=min(first_row, rows))
    fill_rows = num_batches * read_rows - max(first_row, rows)
    fill = tf.data.Dataset.from_tensors(record_order.filler(request.manifest)).repeat(fill_rows)
    batches = records.concatenate(fill).batch(read_rows, drop_remainder=True)
    if shared:
        columns = host.columns(size)
        shape = [host.replicas, batch_rows]
        batches = batches.map(lambda batch: tf.reshape(batch[columns.start : columns.stop], shape)).unbatch()
    return batches, rows


@in_graph
def _parse(serialized_B: tf.Tensor, manifest: Manifest, *, keep: Collection[str]) -> dict[str, tf.Tensor]:
    read = [feature for feature in manifest.schema.features if not feature.is_bytes or feature.name in keep]
    spec = {
        feature.name: tf.io.FixedLenFeature(feature.shape, tf.string if feature.is_bytes else feature.dtype)
        for feature in read
        if feature.constant is None
    }
    parsed = tf.io.parse_example(serialized_B, spec)
    features = {
        feature.name: _on_device(parsed[feature.name], feature)
        if feature.constant is None
        # Parsing constants would take a third of the time for BERT's rows.
        else tf.fill([serialized_B.shape[0], *feature.shape], tf.constant(feature.constant, tf.int32))
        for feature in read
    }
    if host_plan.computes_mask(manifest.schema):
        features[host_plan.mask_name(manifest.schema)] = token_mask(features, manifest.schema, TensorOps())
    return features


def _on_device(values: tf.Tensor, feature: Feature) -> tf.Tensor:
    if feature.dtype != "int64":
        return values
    narrow = tf.cast(values, tf.int32)
    if feature.role != "column":
        return narrow
    # A column of the source may exceed int32.
    problem = f"column {feature.name}: a value is too large for int32; build the dataset without this column"
    check = tf.debugging.assert_equal(tf.cast(narrow, tf.int64), values, problem)
    with tf.control_dependencies([check]):
        return tf.identity(narrow)
