"""The trainer's step on one replica, as the program that its TPU would run.

The learner is the trainer's, built by the trainer, under TensorFlow's default strategy: one replica. What all replicas
do together, the sums of gradients, is then the identity and not in the program; everything else is: forward, backward,
clipping, AdamW, new weights in the memory of the old ones. Its while loops and random numbers are XLA's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from pipelines.train.on_tensorflow.engine import make_replica_step
from pipelines.train.preflight import xla_rules
from pipelines.train.setup import TrainingSetup
from tfrecord_io.errors import ConfigError, PrepError

__all__ = ["stablehlo"]


def stablehlo(job: TrainingSetup, *, batch: int) -> str:
    """The program for so many rows, as StableHLO text with the names of layers.

    Raises: StepError, with operation and place, if it breaks a rule of XLA; ConfigError if the model does not fit the
        dataset.
    """
    config = dataclasses.replace(job.config, global_batch_size=batch, replicas=None)
    spec = _element_spec(job, batch=batch)
    xla_rules.check_spec(spec)
    graph = None
    try:
        learner = make_replica_step(dataclasses.replace(job, config=config), strategy=tf.distribute.get_strategy())
        leaves = tf.nest.flatten(spec)

        def step(*values: tf.Tensor) -> Any:
            return learner.train(tf.nest.pack_sequence_as(spec, values))

        compiled = tf.function(step, jit_compile=True, autograph=False)
        graph = compiled.get_concrete_function(*leaves).graph
        xla_rules.check_graph(graph)
        return str(compiled.experimental_get_compiler_ir(*leaves)(stage="stablehlo"))
    except Exception as error:  # of TensorFlow, Keras or the model's code
        if isinstance(error, PrepError) and not isinstance(error, ConfigError):
            raise
        if (found := xla_rules.explain(error, graph=graph)) is None:
            raise
        raise found from error


def _element_spec(job: TrainingSetup, *, batch: int) -> Any:
    input_fn = job.data.input_fn(
        job.config.train_split, global_batch_size=batch, objective=job.task.objective, training=True
    )
    return input_fn(tf.distribute.InputContext()).element_spec
