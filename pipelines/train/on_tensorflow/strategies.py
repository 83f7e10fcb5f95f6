"""The `tf.distribute` strategy of a target: how it is reached, and why it cannot be reached.

`connect` must come first in a program: initialising a TPU clears its memory, and a CPU can be split only before
TensorFlow has used it.
"""

from __future__ import annotations

import re
import socket

import tensorflow as tf

from pipelines.train.errors import DeviceError, said
from pipelines.train.targets import Target
from tfrecord_io.errors import ConfigError

__all__ = ["connect", "explained", "hardware"]

_CONNECT_SECONDS = 5.0
# What Google's API client, gRPC and TensorFlow say, what it means, and what helps. The first that fits.
_CAUSES = (
    (
        r"Google API client|must be installed|No module named '?(googleapiclient|oauth2client|cloud_tpu_client)",
        "looking up a TPU by its name needs Google's API client, which is not installed",
        "run `pip install cloud-tpu-client`, or give the address: --tpu grpc://IP:8470",
    ),
    (
        r"\b403\b|PERMISSION_DENIED|PermissionDenied|[Ff]orbidden|[Cc]redentials",
        "no permission to use the TPU",
        "run `gcloud auth application-default login`, and ask for the role TPU Viewer or TPU Admin in the project",
    ),
    (
        r"\b404\b|lookup TPU metadata|not found|not yet ready|state: ",
        "there is no TPU of that name in this project and zone, or it is not ready",
        "check --tpu, --zone and --project against `gcloud compute tpus list --zone ZONE`, and that it is READY",
    ),
    (
        r"UNAVAILABLE|Unavailable|DEADLINE_EXCEEDED|[Ff]ailed to connect|Connection |Socket closed",
        "the TPU cannot be reached, or went away",
        "check that it is READY and in this machine's network (port 8470), and that no other program holds it",
    ),
    (
        r"",
        "the TPU could not be started",
        "see `gcloud compute tpus list`: it must run this version of TensorFlow; --tpu none trains on this machine",
    ),
)


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
        raise explained(error, target=str(target)) from error
    if replicas not in (None, strategy.num_replicas_in_sync):
        raise ConfigError(
            f"--replicas {replicas}, but {target} has {strategy.num_replicas_in_sync}",
            remedy="leave out --replicas: on a TPU every core takes part",
        )
    return strategy


def explained(error: BaseException, *, target: str) -> DeviceError:
    """Return the error for a TPU that could not be had, with the library's own first line in it."""
    words = f"{type(error).__name__}: {error}"
    cause, remedy = next((cause, remedy) for pattern, cause, remedy in _CAUSES if re.search(pattern, words))
    return DeviceError(f"{target}: {cause} ({said(error)})", remedy=remedy)


def hardware(strategy: tf.distribute.Strategy) -> str:
    """Describe the hardware of a host."""
    devices, count = strategy.extended.worker_devices, strategy.num_replicas_in_sync
    if tf.DeviceSpec.from_string(devices[0]).device_type == "CPU":
        return "the CPU"
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _check_listening(address: str) -> None:
    """Check that something listens at the address: TensorFlow would try for minutes and then say less."""
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
