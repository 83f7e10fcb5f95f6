"""Where a training runs: which accelerator is meant, how to reach it, and why it cannot be reached.

    --tpu auto   TPU_NAME ► TPU_GRPC_URL ► COLAB_TPU_ADDR ► a TPU in this machine ► GPUs ► CPU
    --tpu NAME | grpc://IP:8470     a TPU Node: its host is another machine, which sees only gs://
    --tpu local                     a TPU VM: the chips are in this machine
    --tpu none                      GPUs, or the CPU, which --replicas N splits into N devices

`choose` decides from the environment alone and touches nothing. `connect` must come first in a program: initialising
a TPU clears its memory, and a CPU can be split only before TensorFlow has used it.
"""

from __future__ import annotations

import dataclasses
import glob
import importlib.util
import socket
from collections.abc import Mapping
from typing import Literal

import tensorflow as tf

from pipelines.train import connection_errors
from pipelines.train.errors import DeviceError
from tfrecord_io.errors import ConfigError

__all__ = [
    "Kind",
    "Target",
    "choose",
    "connect",
    "count_of_host",
    "has_tpu_chips",
    "missed_tpu",
    "place",
    "require_reachable_path",
]

Kind = Literal["tpu-node", "tpu-vm", "host"]
_CONNECT_SECONDS = 5.0
_VARIABLES = ("TPU_NAME", "TPU_GRPC_URL", "COLAB_TPU_ADDR")
_HOSTS = ("cpu", "gpu", "cuda")  # which would be taken for names of TPUs
_NONE_FOUND = "no TPU found"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What was chosen, and by what. `address` is a TPU's name or grpc:// address, or empty."""

    kind: Kind
    address: str = ""
    chosen_by: str

    @property
    def is_tpu(self) -> bool:
        """Whether XLA compiles everything anyway, so that `jit_compile` must be left out."""
        return self.kind != "host"

    def __str__(self) -> str:
        return f"{self.kind} {self.address}".strip() + f" ({self.chosen_by})"


def choose(tpu: str, *, environment: Mapping[str, str], chips_here: bool) -> Target:
    """Return the accelerator that `--tpu` means. `chips_here`: whether this machine has a TPU, see `has_tpu_chips`.

    Raises: ConfigError if it is no name, no address and no word of the list above.
    """
    if tpu == "none":
        return Target(kind="host", chosen_by="--tpu none")
    if tpu == "local":
        return Target(kind="tpu-vm", chosen_by="--tpu local")
    if tpu != "auto":
        return _named(tpu, chosen_by=f"--tpu {tpu}")
    for variable in _VARIABLES:
        value = environment.get(variable, "").strip()
        if value == "local":
            return Target(kind="tpu-vm", chosen_by=f"{variable}=local")
        if value:
            address = value if variable == "TPU_NAME" or "://" in value else f"grpc://{value}"
            return _named(address, chosen_by=f"{variable}={value}")
    if chips_here:
        return Target(kind="tpu-vm", chosen_by="TPU chips in this machine")
    return Target(kind="host", chosen_by=_NONE_FOUND)


def missed_tpu(target: Target, strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """Lines for people who may have meant a TPU, where `--tpu auto` found none; otherwise none."""
    if target.chosen_by != _NONE_FOUND:
        return ()
    return (
        f"warning: no TPU found ({', '.join(_VARIABLES)} are not set, and this machine has no TPU chips): training on "
        f"{_hardware(strategy)}",
        "remedy: for a TPU give --tpu NAME, grpc://IP:8470 or local; --tpu none leaves out this warning",
    )


def place(target: Target, strategy: tf.distribute.Strategy) -> str:
    """Where the replicas are, and why, in words."""
    return str(target) if target.is_tpu else f"{_hardware(strategy)} ({target.chosen_by})"


def _hardware(strategy: tf.distribute.Strategy) -> str:
    """Describe the hardware of a host."""
    devices, count = strategy.extended.worker_devices, strategy.num_replicas_in_sync
    if tf.DeviceSpec.from_string(devices[0]).device_type == "CPU":
        return "the CPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"


def has_tpu_chips() -> bool:
    """Whether this machine is a TPU VM: the chips' device files, and libtpu, which other machines may have too."""
    if glob.glob("/dev/accel[0-9]*"):
        return True
    return bool(glob.glob("/dev/vfio/[0-9]*")) and importlib.util.find_spec("libtpu") is not None


def connect(
    target: Target, *, replicas: int | None = None, zone: str | None = None, project: str | None = None
) -> tf.distribute.Strategy:
    """The strategy for a target, initialised. Call it before anything else uses TensorFlow.

    Raises: DeviceError, with what is wrong, if the TPU cannot be reached; ConfigError if it has not `replicas`.
    """
    if target.kind == "host":
        return _host_strategy(replicas)
    if target.address.startswith("grpc://"):
        _check_listening(target.address)
    try:
        strategy = _tpu_strategy(target, zone=zone, project=project)
    except Exception as error:  # a dozen libraries' own kinds; told apart by what they say
        raise connection_errors.explain(error, target=str(target)) from error
    if replicas not in (None, strategy.num_replicas_in_sync):
        raise ConfigError(
            f"--replicas {replicas}, but {target} has {strategy.num_replicas_in_sync}",
            remedy="leave out --replicas: on a TPU every core takes part",
        )
    return strategy


def require_reachable_path(target: Target, *, option: str, path: str) -> None:
    """Raises: ConfigError if the host of a TPU Node would have to open a path that it cannot see."""
    if target.kind == "tpu-node" and not path.startswith("gs://"):
        raise ConfigError(
            f"{option} {path} with a TPU Node ({target.address}), expected a gs:// address: the TPU's host is another "
            "machine, which reads the data and writes the checkpoints itself and does not see this machine's files",
            remedy=f"copy it to a bucket and give {option} gs://BUCKET/FOLDER, or train on a TPU VM with --tpu local",
        )


def _named(address: str, *, chosen_by: str) -> Target:
    if address.lower() in _HOSTS:
        raise ConfigError(
            f"{chosen_by}: expected a TPU, auto, local or none",
            remedy="give --tpu none, which takes the GPUs of this machine, else its CPU (CUDA_VISIBLE_DEVICES=-1 hides "
            "the GPUs)",
        )
    scheme, separator, rest = address.partition("://")
    if not address or (separator and (scheme != "grpc" or ":" not in rest)):
        raise ConfigError(
            f"{chosen_by}: {address!r}, expected auto, local, none, the name of a TPU, or grpc://IP:8470",
            remedy="`gcloud compute tpus list` shows names and addresses",
        )
    return Target(kind="tpu-node", address=address, chosen_by=chosen_by)


def _check_listening(address: str) -> None:
    """A refused connection is known at once; TensorFlow would try for minutes and then say less."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(
            f"{address}: nothing answers ({error}), expected the gRPC service of a TPU",
            remedy="check the address with `gcloud compute tpus list`, that the TPU is READY, and that this machine is "
            "in the TPU's network with port 8470 open",
        ) from error


def _tpu_strategy(target: Target, *, zone: str | None, project: str | None) -> tf.distribute.Strategy:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu="local" if target.kind == "tpu-vm" else target.address, zone=zone, project=project
    )
    if target.kind == "tpu-node":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def count_of_host() -> int:
    """Replicas of a training on this machine where their number is not given: its GPUs, else one."""
    return len(tf.config.list_physical_devices("GPU")) or 1


def _host_strategy(replicas: int | None) -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if replicas is not None and replicas > len(gpus):
            raise ConfigError(
                f"--replicas {replicas}, but this machine has {len(gpus)} GPUs",
                remedy="choose fewer, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1 to split the CPU",
            )
        return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(replicas or len(gpus))])
    if replicas in (None, 1):
        return tf.distribute.MirroredStrategy(["CPU:0"])
    return _split_cpu(replicas)


def _split_cpu(replicas: int) -> tf.distribute.Strategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    except RuntimeError as error:  # TensorFlow was used before; fine if it was split just so
        found = len(tf.config.list_logical_devices("CPU"))
        if found < replicas:
            raise DeviceError(
                f"--replicas {replicas}, but TensorFlow is already in use here with {found} CPU devices",
                remedy="start the training in a process of its own",
            ) from error
    # Grappler takes longer for the graphs of 8 replicas (44 s of 52 for a tiny BERT) than what it saves.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
