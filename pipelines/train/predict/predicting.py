"""Predicting a split: batches in file order, a part for each replica, what they give in source order.

    reader (this machine) ─► batch [B] ─► parts [B / R] ─► replicas: outputs ─► joined [B] ─► columns, fill rows gone
                                                                                                    │
    FILE ◄─ written whole ◄─ joined ◄─ sorted by source row ◄─ row, shard, record beside them ◄─────┘

Every record is one row of the output, with its kept columns of text, such as an id; where a row was cut into windows,
each window is, unless the task joins them.
Rows of several lengths are predicted length by length, each with a compiled step of its own.
The machine that runs this reads the data, also for a TPU that is elsewhere, so that the order is the files'. What is
predicted stays in memory until it is written.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from pipelines.terminal.console import say
from pipelines.train import backends, model_files, targets
from pipelines.train.engines import Engine
from pipelines.train.model_files import TrainedModel
from pipelines.train.predict import loading, output_file, source_order
from pipelines.train.predict.config import PredictConfig
from pipelines.train.predict.predictors import Predictor, open_predictor
from pipelines.train.predict.source_order import Places
from tfrecord_io import reader
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives.tokens import TokenFeatures
from tfrecord_io.reader import Data

__all__ = ["Written", "predict"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """The file that was written, and how many rows it has."""

    path: str
    rows: int


def predict(config: PredictConfig) -> Written:
    """Predicts a split and writes the file. Must be the first to use TensorFlow's devices in a process.

    Raises: PrepError of the kind that says what is wrong.
    """
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    trained, data = model_files.read(config.model_dir), reader.open(config.data)
    _require_fit(trained, data, config)
    output_file.require_free(config.output, overwrite=config.overwrite)
    predictor = open_predictor(
        config, trained, data.manifest, load_tokenizer=lambda: loading.load_tokenizer(config.model_dir)
    )
    engine = backends.opened(target, config)
    for line in targets.missed_tpu(target, engine.hardware):
        print(line.replace("training on", "predicting on"), file=sys.stderr, flush=True)
    config.require_equal_parts(engine.replicas)
    say(f"replicas: {engine.replicas}, on {targets.place(target, engine.hardware)}")
    table, places = _predicted(config, data, predictor, engine=engine)
    table = predictor.joined(source_order.in_source_order(table, data, config.split, places=places))
    output_file.write(table, config.output)
    return Written(path=config.output, rows=table.num_rows)


def _require_fit(trained: TrainedModel, data: Data, config: PredictConfig) -> None:
    """Raises: ConfigError if the model cannot read the data, or there is no such split."""
    manifest, other = data.manifest, trained.manifest
    if config.split not in data.splits or not data.num_examples(config.split):
        raise ConfigError(
            f"--split {config.split}: {data.root} has no such split, or no example in it",
            remedy=f"choose one of {[name for name in data.splits if data.num_examples(name)]}",
        )
    ours, theirs = manifest.tokenizer, other.tokenizer
    if ours.content_sha256 != theirs.content_sha256:
        raise ConfigError(
            f"--data {data.root} was tokenized by {ours.name!r} (content {ours.content_sha256[:12]}), the model was "
            f"trained on data of {theirs.name!r} (content {theirs.content_sha256[:12]}), expected the same",
            remedy=f"build the data with the model's own: --tokenizer {config.model_dir.rstrip('/')}/tokenizer",
        )
    _require_lengths(data, other)
    names, expected = TokenFeatures.of(manifest).inputs, TokenFeatures.of(other).inputs
    if missing := sorted(set(expected) - set(names)):
        raise ConfigError(
            f"--data {data.root}: no feature {missing[0]!r}, which the model was trained with",
            remedy="build the data with the layout and options of the data that the model was trained on",
        )


def _require_lengths(data: Data, trained_on: Manifest) -> None:
    """Raises: ConfigError if the data has rows of a length that the training had none of."""
    lengths, known = _lengths(data.manifest), _lengths(trained_on)
    if set(lengths) <= set(known):
        return
    options = f"--bucket-lengths {','.join(map(str, known))}" if len(known) > 1 else f"--max-length {known[0]}"
    raise ConfigError(
        f"--data {data.root}: rows of {_listed(lengths)} tokens, the model was trained on rows of {_listed(known)}",
        remedy=f"build the data with {options}" + ("" if len(known) > 1 else ", without --bucket-lengths"),
    )


def _lengths(manifest: Manifest) -> tuple[int, ...]:
    return manifest.bucket_lengths or (manifest.row_length,)


def _listed(lengths: tuple[int, ...]) -> str:
    return " or ".join(map(str, lengths))


def _predicted(config: PredictConfig, data: Data, predictor: Predictor, *, engine: Engine) -> tuple[pa.Table, Places]:
    """One row for each record in the order of the files, and where each record belongs, as far as records say it."""
    model = engine.place_model(lambda: loading.load_model(config.model_dir, predictor.trained, build=config.build))
    parts, places = [], Places.of(data.manifest)
    kept = data.manifest.schema.of_bytes
    for part in _by_length(data, config.split):
        batches = part.dataset(config.split, global_batch_size=config.batch_size, training=False, keep=kept)
        of_part = dataclasses.replace(predictor, manifest=part.manifest)
        run = None
        for batch in batches.as_numpy_iterator():
            given = of_part.device_features(batch)
            run = run or engine.predict(model, of_part.outputs, like=given)
            counts = batch[input_plan.WEIGHT] > 0  # the others only fill up the last batch
            outputs = {name: values[counts] for name, values in run(given).items()}
            features = {name: each[counts] for name, each in batch.items()}
            columns = of_part.columns(outputs, features)
            parts.append(pa.table(columns | _kept_columns(features, part.manifest, taken=columns)))
            places.add(features)
    # Records that say their row, those of windows, have one length: they are in this order already.
    order = source_order.in_file_order(data.manifest, config.split)
    return pa.concat_tables(parts).take(pa.array(order)), places


def _kept_columns(
    features: Mapping[str, np.ndarray], manifest: Manifest, *, taken: Collection[str]
) -> dict[str, pa.Array]:
    """The kept columns of text and bytes, such as ids, as `kept_NAME` where a prediction has that name."""
    found = {}
    for feature in (manifest.schema[name] for name in manifest.schema.of_bytes):
        kind = pa.string() if feature.dtype == "string" else pa.binary()
        is_taken = feature.name in (*taken, *source_order.COLUMNS)
        name = f"kept_{feature.name}" if is_taken else feature.name
        found[name] = pa.array(features[feature.name], pa.binary()).cast(kind)
    return found


def _by_length(data: Data, split: str) -> list[Data]:
    """The data as datasets of one length each: those that have rows in the split, ascending."""
    parts = [data.bucket(length) for length in data.manifest.bucket_lengths]
    return [part for part in parts if part.num_examples(split)] or [data]
