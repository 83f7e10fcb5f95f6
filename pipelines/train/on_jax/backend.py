"""JAX's backend: a mesh of all devices of all hosts.

Each host reads its part of a batch with `tf.data`, and transfers the next batch while its devices compute. The steps of
a call are dispatched without waiting for their results.
"""

import contextlib
import functools
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint as ocp
import tensorflow as tf
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pipelines.train.checkpoints import Saves, damaged, unwritten
from pipelines.train.device_backend import AfterCall, Feed, InputParts, built
from pipelines.train.errors import DeviceError
from pipelines.train.metrics import Evaluated, collected
from pipelines.train.models import BuiltModel
from pipelines.train.on_jax.global_step import AXIS, GlobalStep
from pipelines.train.preflight.tpu_slices import peak_flops_per_s
from pipelines.train.setup import TrainingSetup
from pipelines.train.steps import answering
from pipelines.train.targets import CLUSTER, COORDINATOR, Target, hardware
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some

_SPLIT = "xla_force_host_platform_device_count"


class OrbaxSaves(Saves):
    """Checkpoints that Orbax writes in the background, in folders such as ckpt_120/.

    A checkpoint contains the result of `digest`, since Orbax (0.12.8) has no checksum of values.
    """

    def __init__(self, learner: GlobalStep, folder: str, *, keep: int) -> None:
        self._learner = learner
        self._folder = folder if "://" in folder else os.path.abspath(folder)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, step_prefix="ckpt", create=True)
        try:
            # Without a handler, Orbax would guess it from the newest folder, which may be empty.
            self._manager: Any = ocp.CheckpointManager(
                self._folder, options=options, item_handlers=ocp.StandardCheckpointHandler()
            )
        except (OSError, ValueError) as error:
            raise unwritten(folder, error) from error

    @property
    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self) -> None:
        self.close()
        for step in [step for step in self.steps if step >= self._learner.step]:
            self._manager.delete(step)
        state = self._learner.state
        saved = ocp.args.StandardSave({"state": state, "digest": digest(state)})
        self._writing(lambda: self._manager.save(self._learner.step, args=saved))

    def load(self, step: int) -> None:
        state = self._learner.state
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, {"state": state, "digest": digest(state)})
        try:
            restored = self._manager.restore(step, args=ocp.args.StandardRestore(like))
            if int(digest(restored["state"])) != int(restored["digest"]):
                raise ValueError("the values do not match their digest")
        except Exception as error:  # damaged files raise many types
            raise damaged(f"{self._folder}/ckpt_{step}", error) from error
        self._learner.state, self._learner.step = restored["state"], int(restored["state"]["step"])

    def close(self) -> None:
        self._writing(self._manager.wait_until_finished)

    def _writing(self, work: Any) -> None:
        try:
            work()
        except (OSError, ValueError, RuntimeError) as error:
            raise unwritten(self._folder, error) from error


@jax.jit
def digest(state: Any) -> jax.Array:
    """Return a checksum of all arrays in `state`, uint32 [].

    It is the sum, modulo 2**32, of each value's bits times an odd factor that depends on the value's position. It does
    not depend on how arrays are divided among devices. A single flipped bit always changes it.
    """
    total = jnp.uint32(0)
    for number, values in enumerate(jax.tree.leaves(state)):
        bits = jax.lax.bitcast_convert_type(values, f"uint{8 * values.dtype.itemsize}").astype("uint32")
        places, stride = jnp.full(bits.shape, number, "uint32"), 1
        for axis in reversed(range(bits.ndim)):  # a reshape would gather a divided array
            places += jax.lax.broadcasted_iota("uint32", bits.shape, axis) * jnp.uint32(stride % 2**32)
            stride *= bits.shape[axis]
        factors = (places * jnp.uint32(0x9E3779B1) ^ jnp.uint32(number * 0x85EBCA6B % 2**32)) | jnp.uint32(1)
        total += jnp.sum(bits * factors, dtype="uint32")
    return total


class JaxBackend:
    """JAX's implementation of `device_backend.DeviceBackend`."""

    saves = OrbaxSaves

    def __init__(self, target: Target, *, replicas: int | None = None) -> None:
        devices = _devices(target, replicas=replicas)
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self.replicas = len(devices)
        self._hosts = jax.process_count()
        self.input_parts = InputParts(hosts=self._hosts, parts=self.replicas)
        self.is_first = jax.process_index() == 0
        self.peak_flops = peak_flops_per_s(devices[0].device_kind)
        self.hardware = hardware(devices[0].platform, self.replicas)

    def learner(self, job: TrainingSetup) -> GlobalStep:
        with _on_the_host():
            model = built(job)
        return GlobalStep(model, job, mesh=self._mesh)

    def current(self, learner: GlobalStep) -> keras.Model:
        model = learner.built.model
        whole = jax.jit(lambda values: values, out_shardings=learner.replicated)
        with _on_the_host():
            variables = [*model.trainable_variables, *model.non_trainable_variables]
            values = [*learner.state["weights"], *learner.state["others"]]
            for variable, value in zip(variables, values, strict=False):  # the reference's weights follow
                variable.assign(np.asarray(whole(value)))
        return model

    def frozen(self, learner: GlobalStep) -> list[np.ndarray]:
        whole = jax.jit(lambda values: values, out_shardings=learner.replicated)
        return [np.asarray(whole(value)) for value in learner.reference]

    def train(self, learner: GlobalStep, feed: Feed, *, until: int, steps_per_call: int, after_call: AfterCall) -> None:
        batches = self._batches(feed)
        upcoming = next(batches)
        while learner.step < until:
            for _ in range(min(steps_per_call, until - learner.step)):
                loss = learner.take(upcoming)
                upcoming = next(batches)  # while the devices work
            if not after_call(learner.step, float(loss)):
                return

    def evaluate(self, learner: GlobalStep, feed: Feed) -> Evaluated:
        return collected((learner.evaluate(batch) for batch in self._batches(feed)), jax.device_get)

    def _batches(self, feed: Feed) -> Iterator[Any]:
        input_fns, schedule = feed
        read = functools.partial(self.input_parts.read, host=jax.process_index(), hosts=self._hosts)
        iterators = {
            length: read(make).prefetch(tf.data.AUTOTUNE).as_numpy_iterator() for length, make in input_fns.items()
        }
        by_row = NamedSharding(self._mesh, PartitionSpec(AXIS))
        for length in schedule:
            # This host reads its rows of a batch as [parts, rows, ...].
            yield jax.tree.map(
                lambda parts: jax.make_array_from_process_local_data(by_row, parts.reshape(-1, *parts.shape[2:])),
                next(iterators[length]),
            )

    def place_model(self, load: Callable[[], BuiltModel]) -> keras.Model:
        with _on_the_host():
            return load().model

    def predict(
        self, model: keras.Model, outputs: Callable[..., Any], *, like: Mapping[str, np.ndarray]
    ) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        del like
        replicated, by_row = (NamedSharding(self._mesh, PartitionSpec(*axes)) for axes in ((), (AXIS,)))
        variables = (model.trainable_variables, model.non_trainable_variables)
        weights, state = ([jax.device_put(np.asarray(v.value), replicated) for v in group] for group in variables)

        step = jax.jit(answering(model, outputs), out_shardings=replicated)
        return lambda batch: jax.device_get(step(weights, state, jax.device_put(dict(batch), by_row)))

    def anywhere(self, here: bool) -> bool:
        return here if self._hosts == 1 else bool(multihost_utils.process_allgather(np.array(here)).any())


def _devices(target: Target, *, replicas: int | None) -> list[Any]:
    if target.kind == "host" and not glob.glob("/dev/nvidia[0-9]*"):
        jax.config.update("jax_platforms", "cpu")  # not this machine's TPU
    _join_hosts(target)
    if target.kind == "host" and replicas is not None and _SPLIT not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX is already in use
            jax.config.update("jax_num_cpu_devices", replicas // int(os.environ.get("JAX_NUM_PROCESSES", "1")))
    devices = jax.devices()
    if target.is_tpu and devices[0].platform != "tpu":
        raise DeviceError(
            f"{target}: JAX finds {devices[0].platform}, expected a TPU",
            remedy="run `pip install '.[jax-tpu]'` on a TPU VM, or give --tpu none",
        )
    if len(devices) < (replicas or 1) or (target.is_tpu and replicas not in (None, len(devices))):
        raise ConfigError(
            f"--replicas {replicas}, but JAX has {some(len(devices), 'device')} on this machine",
            remedy="leave --replicas out, or split the CPU before this process uses JAX",
        )
    return devices[:replicas]


def _join_hosts(target: Target) -> None:
    if coordinator := os.environ.get(COORDINATOR):
        count, number = (int(os.environ[name]) for name in CLUSTER)
        jax.distributed.initialize(coordinator, num_processes=count, process_id=number)
    elif target.is_tpu:
        try:
            jax.distributed.initialize()
        except (RuntimeError, ValueError) as error:  # fine on a single host
            if jax.process_count() > 1:
                raise DeviceError(
                    f"{target}: the hosts of the TPU cannot connect to each other ({error})",
                    remedy="run the same command on every host of the TPU",
                ) from error


def _on_the_host() -> Any:
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names only an accelerator
        return contextlib.nullcontext()
