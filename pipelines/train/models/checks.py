"""Check that a model fits the dataset and the task: vocabulary, positions, the shape of its logits."""

from __future__ import annotations

from collections.abc import Mapping

import keras
from keras import ops

from pipelines.train.config import TrainConfig
from pipelines.train.errors import said
from pipelines.train.models import heads
from pipelines.train.tasks import BoundTask
from tfrecord_io.errors import ConfigError
from tfrecord_io.manifest import Manifest
from tfrecord_io.objectives import DECODER_INPUTS, MASKED_POSITIONS

__all__ = ["check_logits", "check_sizes"]


def check_sizes(model: keras.Model, *, config: TrainConfig, manifest: Manifest) -> None:
    """Raises: ConfigError for a model whose largest embedding has no row for some id, or whose positions end before the
    rows do.
    """
    rows_of = {each.path.split("/")[-2]: each.shape[0] for each in model.variables if each.path.endswith("/embeddings")}
    positions = {name: rows for name, rows in rows_of.items() if name.endswith("position_embedding")}
    tables = {name: rows for name, rows in rows_of.items() if name not in positions}
    vocab_size = manifest.tokenizer.vocab_size
    if tables and (rows := max(tables.values())) < vocab_size:
        layer = max(tables, key=lambda name: tables[name])
        raise ConfigError(
            f"--model {config.model}: its vocabulary ends at {rows} (layer {layer!r}), but the dataset was made with "
            f"tokenizer {manifest.tokenizer.name!r} of {vocab_size} entries",
            remedy="build the dataset with the model's own tokenizer, or train a model from scratch: --model bert-tiny",
        )
    target = manifest.schema.with_role("target_ids")
    for name, rows in positions.items():
        of_targets = target is not None and name.startswith("decoder")
        needed = target.num_values if target is not None and of_targets else manifest.row_length
        if rows < needed:
            raise ConfigError(
                f"--model {config.model}: it has {rows} positions, but {'targets' if of_targets else 'rows'} of this "
                f"dataset have {needed} tokens",
                remedy=f"build the dataset with --{'target' if of_targets else 'max'}-length {rows}",
            )


def check_logits(model: keras.Model, *, config: TrainConfig, manifest: Manifest, task: BoundTask) -> None:
    """Raises: ConfigError for a model whose logits have another shape than the task needs, with rows of any length."""
    for length in manifest.bucket_lengths or (manifest.row_length,):
        _check_shape(model, config=config, manifest=manifest, task=task, length=length)


def _check_shape(model: keras.Model, *, config: TrainConfig, manifest: Manifest, task: BoundTask, length: int) -> None:
    given = {name: (2, each.shape[1] or length) for name, each in heads.inputs_of(manifest, task).items()}
    if MASKED_POSITIONS in given:
        given[MASKED_POSITIONS] = (2, 1)
    shapes = heads.taken(model, given)
    rows: tuple[int, ...] = (2, length) if task.per_token else (2,)
    rows = shapes.get(MASKED_POSITIONS, given[DECODER_INPUTS] if task.name == "seq2seq" else rows)
    shape = _output_shape(model, shapes, config=config, manifest=manifest)
    exact = not task.of_vocabulary
    if shape[:-1] != rows or (shape[-1] != task.num_outputs if exact else shape[-1] < task.num_outputs):
        place = "T" if task.name == "seq2seq" else "L"
        wanted = f"[B, {f'{place}, ' if task.per_token else ''}{task.num_outputs}]"
        got = str(["B", *shape[1:]]).replace("'", "")
        raise ConfigError(
            f"--model {config.model}: its output has shape {got}, expected logits {wanted} for --task {config.task}",
            remedy="make its last layer so wide: class count for classify and tokens, 1 for numbers, 2 for span, "
            "vocabulary else",
        )


def _output_shape(
    model: keras.Model, shapes: Mapping[str, tuple[int, ...]], *, config: TrainConfig, manifest: Manifest
) -> tuple[int, ...]:
    try:
        return tuple(model.compute_output_shape(shapes))
    except Exception:  # a subclassed model may not say; it will when it is called
        pass
    try:
        return tuple(model({name: ops.zeros(each, "int32") for name, each in shapes.items()}).shape)
    except Exception as error:
        if not manifest.bucket_lengths:
            raise
        raise ConfigError(
            f"--model {config.model}: it does not take rows of each of the lengths {list(manifest.bucket_lengths)} "
            f"({said(error)})",
            remedy="give its inputs the shape (None,)",
        ) from error
