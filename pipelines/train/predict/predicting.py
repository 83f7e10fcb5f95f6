"""Predict a split: read batches in file order, divide them among the replicas, and write results in source order.

Every record becomes an output row, unless the task joins the windows of a source row. The column `row` comes from the
feature `source_row` or the plan in the dataset's folder, or is null. Predictions stay in memory until they are written.
"""

import base64
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from pipelines.terminal.console import say
from pipelines.train import backends, checkpoints, model_files, setup, targets, tasks
from pipelines.train.config import PredictConfig
from pipelines.train.device_backend import DeviceBackend
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict import loading
from pipelines.train.predict.predictors import Predictor
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError, OutputError, PrepError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.base import TokenFeatures
from tfrecord_io.reader import Data

_ROW_COLUMNS = ("row", "window", "shard", "record")
# Column with a record's end in the text of its row, 0 if unknown. This cannot be a feature's name.
_ENDS = "last/char_end"


def predict(config: PredictConfig) -> int:
    """Predict a split, write the output file, and return the number of its rows.

    Call this before anything else uses TensorFlow's devices. Raises: a PrepError.
    """
    targets.require_whole_cluster(os.environ)
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    trained, data = model_files.read(config.model_dir), reader.open(config.data)
    _require_fit(trained, data, config)
    if tf.io.gfile.isdir(config.output) or (tf.io.gfile.exists(config.output) and not config.overwrite):
        remedy = "give another --output" + ("" if tf.io.gfile.isdir(config.output) else ", or --overwrite")
        raise OutputError(f"--output {config.output} exists already, expected a new file", remedy=remedy)
    if (kind := tasks.TASKS[trained.task].predictor) is None:
        raise ConfigError(
            f"--model {config.model_dir} was trained for mlm, which predicts masked words but not rows",
            remedy='give --fill-mask "a text with a [MASK]" instead of --data',
        )
    tokenizer = functools.cache(lambda: loading.load_tokenizer(config.model_dir))
    predictor = kind(config=config, trained=trained, manifest=data.manifest, tokenizer=tokenizer)
    predictor.check()
    backend = backends.opened(target, config)
    say(f"replicas: {backend.replicas}, on {targets.place(target, backend.hardware)}")
    table = _with_rows(_predicted(config, data, predictor, backend=backend), data, config.split)
    table = predictor.joined(table)
    _write(table, config.output)
    return int(table.num_rows)


def _require_fit(trained: TrainedModel, data: Data, config: PredictConfig) -> None:
    manifest, former = data.manifest, trained.manifest
    setup.require_split(data, config.split, option="--split")
    ours, theirs = manifest.tokenizer, former.tokenizer
    if ours.content_sha256 != theirs.content_sha256:
        raise ConfigError(
            f"--data {data.root} was tokenized by {ours.name!r} (content {ours.content_sha256[:12]}), the model's data "
            f"by {theirs.name!r} (content {theirs.content_sha256[:12]}), expected the same tokenizer",
            remedy=f"build the data with the model's tokenizer: --tokenizer {config.model_dir.rstrip('/')}/tokenizer",
        )
    if unknown := [name for name in manifest.label_names or () if name not in (former.label_names or (name,))]:
        raise ConfigError(
            f"--data {data.root}: the model does not have the class {unknown[0]!r}, only "
            f"{', '.join(map(repr, trained.label_names[:5]))}{' …' if len(trained.label_names) > 5 else ''}",
            remedy="build the data with the model's classes, or without --label-column",
        )
    lengths = manifest.bucket_lengths or (manifest.row_length,)
    known = former.bucket_lengths or (former.row_length,)
    if not set(lengths) <= set(known):
        here, there = " or ".join(map(str, lengths)), " or ".join(map(str, known))
        options = f"--bucket-lengths {','.join(map(str, known))}"
        raise ConfigError(
            f"--data {data.root}: rows have a length of {here}, but the model was trained on rows of {there}",
            remedy="build the data with "
            + (options if len(known) > 1 else f"--max-length {there}, without --bucket-lengths"),
        )
    side = tasks.TASKS[trained.task].side
    needed = TokenFeatures.of(former, side=side).inputs
    if missing := sorted({*needed} - {*TokenFeatures.of(manifest, side=side).inputs}):
        raise ConfigError(
            f"--data {data.root}: the data has no feature {missing[0]!r}, with which the model was trained",
            remedy="build the data with the layout and options of the model's training data",
        )


def _predicted(config: PredictConfig, data: Data, predictor: Predictor, *, backend: DeviceBackend) -> pa.Table:
    trained = predictor.trained
    loads = [loading.load_model, *[loading.load_reference] * tasks.TASKS[trained.task].reference]
    models = [
        backend.place_model(functools.partial(load, config.model_dir, trained, build=config.build)) for load in loads
    ]
    of_lengths = [data.bucket(length) for length in data.manifest.bucket_lengths] or [data]
    parts = []
    for part in [data for data in of_lengths if data.num_examples(config.split)]:
        kept = part.manifest.schema.of_bytes
        batches = part.dataset(config.split, global_batch_size=config.batch_size, training=False, keep=kept)
        of_part, runs = dataclasses.replace(predictor, manifest=part.manifest), list[Any]()
        for batch in batches.as_numpy_iterator():
            inputs = of_part.device_features(batch)
            runs = runs or [backend.predict(model, of_part.outputs, like=inputs) for model in models]
            real = batch[host_plan.WEIGHT] > 0  # without fill rows
            own, *reference = (run(inputs) for run in runs)
            outputs = {
                name: (values - reference[0][name] if reference else values)[real] for name, values in own.items()
            }
            features = {name: values[real] for name, values in batch.items()}
            columns = of_part.columns(outputs, features)
            parts.append(pa.table(columns | _beside(features, part.manifest, taken=columns)))
    return pa.concat_tables(parts)


def _beside(features: Mapping[str, np.ndarray], manifest: Manifest, *, taken: Collection[str]) -> dict[str, pa.Array]:
    columns = {}
    for feature in (manifest.schema[name] for name in manifest.schema.of_bytes):
        kind = pa.string() if feature.dtype == "string" else pa.binary()
        name = f"kept_{feature.name}" if feature.name in (*taken, *_ROW_COLUMNS) else feature.name
        columns[name] = pa.array(features[feature.name], pa.binary()).cast(kind)
    row, ends = (manifest.schema.with_role(role) for role in ("source_row", "char_ends"))
    if row is not None:
        rows = features[row.name].astype(np.int64)
        columns["row"] = pa.array(rows)
        columns[_ENDS] = pa.array(rows * 0 if ends is None else features[ends.name].max(axis=1))
    return columns


def _with_rows(table: pa.Table, data: Data, split: str) -> pa.Table:
    shards = data.splits[split].shards
    counts = [shard.num_examples for shard in shards]
    # The rows of `table` are grouped by length.
    lengths = np.repeat([shard.length or 0 for shard in shards], counts)
    in_files = np.argsort(np.argsort(lengths, kind="stable"))  # position in the table, by record
    table = table.take(pa.array(in_files))
    index, record = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(count) for count in counts])
    located = {"shard": pa.array(index, pa.int32()), "record": pa.array(record, pa.int64())}
    own = {name: table[name] for name in table.column_names if name not in ("row", _ENDS)}
    if _ENDS in table.column_names:
        rows, ends = table["row"].to_numpy(), table[_ENDS].to_numpy()
        order = np.lexsort((ends, rows))
        window = np.empty(len(rows), np.int64)
        at, begins = np.arange(len(rows)), np.diff(rows[order], prepend=-1) != 0
        window[order] = at - np.maximum.accumulate(np.where(begins, at, 0))  # from 0 in each row
        located = {"window": pa.array(window, pa.int32()), **located}
    elif (known := _planned(data, split)) is not None:
        rows, order = known, np.argsort(known, kind="stable")
    else:
        return pa.table({"row": pa.nulls(len(record), pa.int64()), **located, **own})
    return pa.table({"row": pa.array(rows, pa.int64()), **located, **own}).take(pa.array(order))


def _planned(data: Data, split: str) -> np.ndarray | None:
    from pipelines.prepare.audit import trace

    try:
        return trace.record_rows(data.root, data.manifest, split)
    except PrepError as error:
        cause, remedy = error.cause, error.remedy
    except (KeyError, ValueError, OSError) as error:  # the manifest of another program
        cause, remedy = f"{data.root}: {error!r:.200}", "build the dataset with prep-tfrecords"
    say(f"warning: the source rows are unknown ({cause}), so the column row is null and rows are in file order")
    say(f"remedy: {remedy}")
    return None


def _write(table: pa.Table, path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "table")
        if path.endswith(".jsonl"):
            with open(local, "w", encoding="utf-8") as file:
                for batch in table.to_batches(max_chunksize=1024):
                    for row in batch.to_pylist():
                        text = json.dumps(
                            row, ensure_ascii=False, default=lambda value: base64.b64encode(value).decode()
                        )
                        file.write(f"{text}\n")
        else:
            pq.write_table(table, local)
        try:
            checkpoints.put(local, path)
        except tf.errors.OpError as error:
            raise OutputError(
                f"--output {path}: cannot be written ({error.message})",
                remedy="check the path and your permission to write",
            ) from error
