"""TensorFlow's backend: a `tf.distribute` strategy with a replica per TPU core, GPU or part of the CPU.

A call runs `steps_per_call` steps in a tf.while_loop on the devices. It is split where the row length changes, and each
length is compiled once.
"""

import contextlib
import itertools
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipelines.train.checkpoints import Saves, damaged, steps_in, unwritten
from pipelines.train.device_backend import AfterCall, Feed, InputParts, built, element_specs
from pipelines.train.errors import DeviceError, said
from pipelines.train.metrics import Evaluated, collected
from pipelines.train.models import BuiltModel
from pipelines.train.on_tensorflow.replica_step import ReplicaStep, specs_of, traced_once, values_of
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import answering
from pipelines.train.targets import Target, hardware
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some

_CONNECT_SECONDS = 5.0
# Patterns in error messages, with cause and remedy.
_CAUSES = (
    (
        r"Google API client|must be installed|No module named '?(googleapiclient|oauth2client|cloud_tpu_client)",
        "finding a TPU by name needs Google's API client, which is not installed",
        "run `pip install cloud-tpu-client`, or give the address: --tpu grpc://IP:8470",
    ),
    (
        r"\b403\b|PERMISSION_DENIED|PermissionDenied|[Ff]orbidden|[Cc]redentials",
        "no permission to use the TPU",
        "run `gcloud auth application-default login`, and ask for the role TPU Viewer or TPU Admin in the project",
    ),
    (
        r"\b404\b|lookup TPU metadata|not found|not yet ready|state: ",
        "the TPU does not exist in this project and zone, or is not ready",
        "compare --tpu, --zone and --project with `gcloud compute tpus list --zone ZONE`, which must show READY",
    ),
    (
        r"UNAVAILABLE|Unavailable|DEADLINE_EXCEEDED|[Ff]ailed to connect|Connection |Socket closed",
        "the TPU cannot be reached, or was disconnected",
        "check that the TPU is READY, in this machine's network (port 8470), and not used by another program",
    ),
    (
        r"",
        "the TPU could not be started",
        "check with `gcloud compute tpus list` that the TPU runs this version of TensorFlow; --tpu none trains on this "
        "machine",
    ),
)


class TensorFlowSaves(Saves):
    """Checkpoints that `tf.train` writes. A checkpoint's file ckpt-120.index is written last and deleted first."""

    def __init__(self, learner: ReplicaStep, folder: str, *, keep: int) -> None:
        self._learner = learner
        self._folder = folder
        # State by position, because Keras' names depend on other models in the process.
        self._state = tf.train.Checkpoint(**learner.saved)
        self._keep = keep

    @property
    def steps(self) -> list[int]:
        return steps_in(self._folder)

    def save(self) -> None:
        now = self._learner.step
        try:
            self._state.write(f"{self._folder}/ckpt-{now}")
            steps = self.steps
            kept = [step for step in steps if step <= now][-self._keep :]
            for name in sorted(tf.io.gfile.listdir(self._folder), reverse=True):  # .index before .data
                if any(name.startswith(f"ckpt-{step}.") for step in set(steps) - set(kept)):
                    tf.io.gfile.remove(f"{self._folder}/{name}")
        except tf.errors.OpError as error:
            raise unwritten(self._folder, error) from error

    def load(self, step: int) -> None:
        path = f"{self._folder}/ckpt-{step}"
        try:
            self._state.read(path).assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, IndexError) as error:
            raise damaged(path, error) from error


class TensorFlowBackend:
    """TensorFlow's implementation of `device_backend.DeviceBackend`."""

    saves = TensorFlowSaves
    is_first = True
    peak_flops = 0.0

    def __init__(
        self, target: Target, *, replicas: int | None = None, zone: str | None = None, project: str | None = None
    ) -> None:
        self._strategy = connect(target, replicas=replicas, zone=zone, project=project)
        self.replicas = self._strategy.num_replicas_in_sync
        devices = list(map(tf.DeviceSpec.from_string, self._strategy.extended.worker_devices))
        self.input_parts = InputParts(hosts=len({(device.job, device.task) for device in devices}))
        self.hardware = hardware(devices[0].device_type, self.replicas)

    def learner(self, job: TrainingSetup) -> ReplicaStep:
        if job.config.shard_model:
            raise ConfigError(
                "--shard-model with --backend tensorflow, expected --backend jax", remedy="give --backend jax"
            )
        specs = element_specs(job, replicas=self.replicas)
        with self._strategy.scope():
            return ReplicaStep(built(job), job, batch_specs=specs)

    def current(self, learner: ReplicaStep) -> keras.Model:
        return learner.built.model

    def frozen(self, learner: ReplicaStep) -> list[np.ndarray]:
        return [variable.numpy() for variable in learner.reference]

    def train(
        self, learner: ReplicaStep, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall
    ) -> None:
        # AutoGraph would take time to rewrite Keras, and fails on loops in Python 3.13.
        @tf.function(autograph=False)
        def call(iterator: Any, num_steps: tf.Tensor) -> tf.Tensor:
            def one_step(done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                losses = self._strategy.run(learner.train, args=(next(iterator),))
                return done + 1, self._strategy.experimental_local_results(losses)[0]  # equal on all replicas

            none = tf.zeros([], num_steps.dtype), tf.zeros([], keras.config.floatx())
            loss: tf.Tensor = tf.while_loop(lambda done, _: done < num_steps, one_step, none)[1]
            return loss

        (iterators, schedule), step = self._opened(feed), learner.step
        while step < until:
            num_steps = min(steps_per_call, until - step)
            for length, steps in itertools.groupby(itertools.islice(schedule, num_steps)):
                # TensorFlow would compile `call` again for each Python number.
                loss = call(iterators[length], tf.constant(len(list(steps))))
            step += num_steps
            if not after_call(step, float(loss.numpy())):
                return

    def evaluate(self, learner: ReplicaStep, feed: Feed) -> Evaluated:
        @tf.function(autograph=False)
        def call(iterator: Any) -> Any:
            values = self._strategy.run(learner.evaluate, args=(next(iterator),))
            return tf.nest.map_structure(lambda value: self._strategy.experimental_local_results(value)[0], values)

        iterators, schedule = self._opened(feed)
        steps = (call(iterators[length]) for length in schedule)
        return collected(steps, lambda values: tf.nest.map_structure(lambda value: value.numpy(), values))

    def _opened(self, feed: Feed) -> tuple[dict[int, Any], Iterator[int]]:
        input_fns, schedule = feed
        distribute = self._strategy.distribute_datasets_from_function
        return {length: iter(distribute(input_fn)) for length, input_fn in input_fns.items()}, schedule

    def place_model(self, load: Callable[[], BuiltModel]) -> keras.Model:
        with self._strategy.scope():
            return load().model

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]

        parts = {name: array[: len(array) // self.replicas] for name, array in like.items()}
        own = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in parts.items()}
        traced = traced_once(answering(model, outputs), (specs_of(weights), specs_of(state), own))

        @tf.function(autograph=False)
        def step(features: dict[str, Any]) -> Any:
            return self._strategy.run(lambda own: traced(values_of(weights), values_of(state), own), args=(features,))

        def run(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            parts = {name: np.split(array, self.replicas) for name, array in batch.items()}

            def own_part(context: Any) -> dict[str, tf.Tensor]:
                return {name: tf.constant(arrays[context.replica_id_in_sync_group]) for name, arrays in parts.items()}

            features = self._strategy.experimental_distribute_values_from_function(own_part)
            outputs, local = step(features), self._strategy.experimental_local_results
            return {name: np.concatenate([part.numpy() for part in local(value)]) for name, value in outputs.items()}

        return run

    def anywhere(self, here: bool) -> bool:
        return here  # one process drives all hosts


def connect(
    target: Target, *, replicas: int | None = None, zone: str | None = None, project: str | None = None
) -> tf.distribute.Strategy:
    """Create the strategy for a target. Call this first, since it clears a TPU's memory and splits the CPU.

    Raises: DeviceError if the TPU cannot be reached; ConfigError if it has another number of replicas.
    """
    if target.kind == "host":
        return _host_strategy(replicas)
    if target.address.startswith("grpc://"):
        _check_listening(target.address)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu="local" if target.kind == "tpu-vm" else target.address, zone=zone, project=project
        )
        if target.kind == "tpu-node":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # many libraries' types
        raise explained(error, target=str(target)) from error
    if replicas not in (None, strategy.num_replicas_in_sync):
        raise ConfigError(
            f"--replicas {replicas}, but {target} has {some(strategy.num_replicas_in_sync, 'core')}",
            remedy="leave --replicas out; a training run uses all cores of a TPU",
        )
    return strategy


def explained(error: BaseException, *, target: str) -> DeviceError:
    """Convert a library's error about a TPU to a DeviceError with cause and remedy. `target`: the TPU, in words."""
    words = f"{type(error).__name__}: {error}"
    cause, remedy = next((cause, remedy) for pattern, cause, remedy in _CAUSES if re.search(pattern, words))
    return DeviceError(f"{target}: {cause} ({said(error)})", remedy=remedy)


def _check_listening(address: str) -> None:
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:  # TensorFlow would retry for minutes
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(
            f"{address}: nothing answers ({error}), expected the gRPC service of a TPU",
            remedy="check the address with `gcloud compute tpus list`, that the TPU is READY, and that this machine is "
            "in the TPU's network with port 8470 open",
        ) from error


def _host_strategy(replicas: int | None) -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if replicas is not None and replicas > len(gpus):
            raise ConfigError(
                f"--replicas {replicas}, but this machine has {some(len(gpus), 'GPU')}",
                remedy="give fewer --replicas, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1 to split the CPU",
            )
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(replicas or len(gpus))])
    if replicas in (None, 1):
        return tf.distribute.MirroredStrategy(["CPU:0"])
    cpu = tf.config.list_physical_devices("CPU")[0]
    with contextlib.suppress(RuntimeError):  # TensorFlow is already in use
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    # Grappler takes more time for the graphs of 8 replicas than it saves.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
