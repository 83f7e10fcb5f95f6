"""Set up a training run and check it before a device is used, because a TPU takes a long time to start.

For a TPU, the input pipelines are also built and checked (`tfrecord_io.readiness`), but not for a CPU, because it can
be split into replicas only before TensorFlow uses it.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipelines.train import checkpoints, targets, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.models import backbones
from pipelines.train.targets import Target
from pipelines.train.tasks import BoundTask
from tfrecord_io import manifest, reader, readiness
from tfrecord_io.errors import ConfigError
from tfrecord_io.input_pipeline.base import InputFunctions
from tfrecord_io.manifest import LabelRange
from tfrecord_io.mixture import Mixture
from tfrecord_io.reader import Data
from tfrecord_io.shown import some


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """Checked options, accelerator, data and task of a training run.

    `eval_split`: split to evaluate on; None: nothing is evaluated. `warnings`: lines about inputs that a TPU waits for.
    """

    config: TrainConfig
    target: Target
    data: InputFunctions
    eval_split: str | None
    task: BoundTask
    warnings: tuple[str, ...] = ()


def check(config: TrainConfig) -> TrainingSetup:
    """Check a training run's options, data and model folder. Return its setup. Raises: a PrepError."""
    targets.require_whole_cluster(os.environ)
    target = targets.choose(config.tpu, environment=os.environ, chips_here=targets.has_tpu_chips())
    for option, path in (*(("--data", folder) for folder in config.data_folders), ("--model-dir", config.model_dir)):
        targets.require_reachable_path(target, option=option, path=path)
    job = prepared(config, target)
    config = job.config
    if tf.io.gfile.exists(f"{config.model_dir.rstrip('/')}/{manifest.FILE_NAME}"):
        raise ConfigError(
            f"--model-dir {config.model_dir} contains a dataset, expected a folder only for checkpoints and the model",
            remedy="give another --model-dir",
        )
    checkpoints.claimed(
        config.model_dir, identity=identity(config, job.data), writes=False, may_change=config.allow_changes
    )
    return dataclasses.replace(job, warnings=tuple(_unfit(job))) if target.is_tpu else job


def prepared(config: TrainConfig, target: Target) -> TrainingSetup:
    """Open the data, compute the options that depend on it, and bind the task. Raises: a PrepError."""
    data = open_data(config)
    eval_split = _eval_split(config, data)
    require_labels(config, data, eval_split=eval_split)
    config = with_num_labels(config, data, eval_split=eval_split)
    config = config.sized(rows=data.num_examples(config.train_split))
    # bfloat16 is fastest on a TPU; weights and losses stay in float32.
    config = dataclasses.replace(config, precision=config.precision or ("bfloat16" if target.is_tpu else "float32"))
    task = tasks.bind(config, data.manifest)
    backbones.require_known(config.model)
    return TrainingSetup(config=config, target=target, data=data, eval_split=eval_split, task=task)


def _unfit(job: TrainingSetup) -> list[str]:
    config = job.config
    inputs = [(part, config.train_split, True) for part in by_length(job.data).values()]
    if job.eval_split is not None:
        for data in evaluated(job.data, job.eval_split).values():
            inputs += [(part, job.eval_split, False) for part in by_length(data).values()]
    start = max(checkpoints.steps_in(f"{config.model_dir.rstrip('/')}/{checkpoints.SAVES}"), default=0)
    options: dict[str, Any] = {"global_batch_size": config.global_batch_size, "order": config.order}
    options |= {"objective": job.task.objective, "tpu": "node" if job.target.kind == "tpu-node" else "vm"}
    options["num_replicas"] = config.replicas or 1  # unknown before connecting to the TPU
    findings = []
    for part, split, endless in inputs:
        if part.num_examples(split):
            first = start if endless else 0
            findings += readiness.check_data(part, split, **options, training=endless, start_step=first)
    readiness.require(findings)
    return readiness.describe(dict.fromkeys(findings)).splitlines() if findings else []


def identity(config: TrainConfig, data: InputFunctions) -> Mapping[str, Any]:
    """Return the entries of run.json, by name, that identify a training run."""
    # The fingerprint covers the first stage.
    stages = {str(step): list(weights) for step, weights in config.data_stages.items() if step}
    more: dict[str, Any] = {checkpoints.STAGES: stages} if stages else {}
    if tasks.TASKS[config.task].reference:
        more |= {"beta": config.beta, "reference": config.reference}
    return {"data": data.manifest.fingerprint, "backend": keras.backend.backend(), **config.identity(), **more}


def _eval_split(config: TrainConfig, data: InputFunctions) -> str | None:
    require_split(data, config.train_split, option="--train-split", all_have_it=True)
    if config.eval_split is None:
        usual = [name for name in ("validation", "test") if has_labels(config, data, name)]
        eval_split = next((name for name in usual if name != config.train_split), None)
        if eval_split is None and (config.early_stopping or config.keep_best):
            option = "--early-stopping" if config.early_stopping else "--keep-best"
            raise ConfigError(
                f"{option} needs evaluations, but {data.root} has neither a validation nor a test split",
                remedy=f"give --eval-split {splits_of(data)}, or build the data with --hold-out",
            )
        return eval_split
    require_split(data, config.eval_split, option="--eval-split")
    return config.eval_split


def open_data(config: TrainConfig) -> InputFunctions:
    """Open the dataset of --data, or the mixture of several datasets.

    Raises: ReaderError; ConfigError if a mixture has buckets.
    """
    opened = [reader.open(folder) for folder in config.data_folders]
    if len(opened) == 1:
        return opened[0]
    for data in opened:
        if lengths := data.manifest.bucket_lengths:
            raise ConfigError(
                f"--data {data.root}: rows have several lengths ({', '.join(map(str, lengths))}), expected one length, "
                "since a batch of a mixture has rows of all datasets",
                remedy="build this dataset without --bucket-lengths, or train on it alone",
            )
    named: dict[str, Data] = {}
    for data in opened:
        name = data.manifest.name
        count = sum(earlier.manifest.name == name for earlier in named.values())
        named[f"{name}-{count + 1}" if count else name] = data
    stages = {step: dict(zip(named, weights, strict=True)) for step, weights in config.data_stages.items()}
    return Mixture(named, stages=stages or None, temperature=config.temperature)


def shares(job: TrainingSetup) -> Mapping[str, Mapping[str, float]]:
    """Return `rows`, `tokens` and `epochs` in the training run, for each dataset of a mixture; {} without a mixture."""
    if not isinstance(job.data, Mixture):
        return {}
    config = job.config
    return job.data.describe(config.train_split, global_batch_size=config.global_batch_size, steps=config.total_steps)


def datasets_of(data: InputFunctions) -> Sequence[Data]:
    """Return the datasets of a mixture, or the only dataset."""
    datasets: tuple[Any, ...] = tuple(data.datasets.values()) if isinstance(data, Mixture) else (data,)
    return datasets


def by_length(data: InputFunctions) -> Mapping[int, InputFunctions]:
    """Return the parts of a dataset by row length, ascending."""
    if isinstance(data, Data) and data.manifest.bucket_lengths:
        return {length: data.bucket(length) for length in data.manifest.bucket_lengths}
    return {data.manifest.row_length: data}


def evaluated(data: InputFunctions, split: str) -> Mapping[str, Data]:
    """Return the datasets with examples in a split, by name: SPLIT, or in a mixture DATASET/SPLIT."""
    datasets: dict[str, Any] = {split: data}
    if isinstance(data, Mixture):
        datasets = {f"{name}/{split}": part for name, part in data.datasets.items()}
    return {name: part for name, part in datasets.items() if split in part.splits and part.num_examples(split)}


def require_split(data: InputFunctions, split: str, *, option: str, all_have_it: bool = False) -> None:
    """Check that a dataset (`all_have_it`: every dataset of a mixture) has examples in a split. Raises: ConfigError."""
    if len(evaluated(data, split)) < (len(datasets_of(data)) if all_have_it else 1):
        raise ConfigError(
            f"{option} {split}: {data.root} has no split {split!r}, or no example in it",
            remedy=f"give {option} {splits_of(data)}",
        )


def splits_of(data: InputFunctions) -> str:
    return " or ".join(name for name in data.splits if data.num_examples(name))


def has_labels(config: TrainConfig, data: InputFunctions, split: str) -> bool:
    """Return whether a split has examples and, if the task is classify, an example with a label."""
    shards = [part.splits[split] for part in evaluated(data, split).values()]
    needs_labels = tasks.TASKS[config.task].labels == "label"
    return any(not needs_labels or part.num_unlabelled < part.num_examples for part in shards)


def with_num_labels(config: TrainConfig, data: InputFunctions, *, eval_split: str | None) -> TrainConfig:
    """Return the config with `num_labels` from the range of the data's integer labels, if the range is known.

    Raises: ConfigError if a label is below 0, or not below --num-labels; without this option, also if labels have gaps.
    """
    splits = (config.train_split, *([] if eval_split is None else [eval_split]))
    every_range = [part.splits[split].labels for split in splits for part in evaluated(data, split).values()]
    ranges = [labels for labels in every_range if labels is not None]
    if tasks.TASKS[config.task].labels is None or not ranges or len(ranges) < len(every_range):
        return config
    labels = functools.reduce(LabelRange.joined, ranges)
    num_labels = config.num_labels or labels.largest + 1
    fits = labels.smallest >= 0 and labels.largest < num_labels
    if fits and (config.num_labels or not labels.has_gaps_from_0):
        return dataclasses.replace(config, num_labels=num_labels)
    # The number of different labels over several splits may be unknown.
    shown = ranges[0] if ranges[0].has_gaps_from_0 else labels
    expected = config.num_labels or shown.distinct or labels.largest + 1
    option = f"--num-labels {config.num_labels}: " if config.num_labels else ""
    ways = ["build the data with --label-classes, which makes each value a class"] * (
        tasks.TASKS[config.task].labels == "label"
    )
    ways += [f"give --num-labels {labels.largest + 1}"] * (labels.smallest >= 0)
    raise ConfigError(
        f"{option}{data.root}: labels have {shown.text}, expected 0 to {expected - 1}", remedy=", or ".join(ways)
    )


def require_labels(config: TrainConfig, data: InputFunctions, *, eval_split: str | None) -> None:
    for option, split in (("--train-split", config.train_split), ("--eval-split", eval_split)):
        if split is not None and not has_labels(config, data, split):
            raise ConfigError(
                f"{option} {split}: no example in {data.root} has a label ({some(data.num_examples(split), 'example')} "
                "with label -1)",
                remedy="choose another split; `train-tpu predict` needs no labels",
            )
