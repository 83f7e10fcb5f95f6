"""Choose the accelerator (--tpu) and its backend (--backend), before TensorFlow or JAX is imported.

docs/reference/training.md explains the values of both options.
"""

import contextlib
import dataclasses
import glob
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping
from typing import Literal

from pipelines.train.config import Backend
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import some

Kind = Literal["tpu-node", "tpu-vm", "host"]
_VARIABLES = ("TPU_NAME", "TPU_GRPC_URL", "COLAB_TPU_ADDR")
# JAX's variables for several processes: the first one's address, their count, and this one's number.
COORDINATOR, CLUSTER = "JAX_COORDINATOR_ADDRESS", ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_HOSTS = ("cpu", "gpu", "cuda")  # not names of TPUs
_NONE_FOUND = "no TPU found"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The chosen accelerator: a TPU Node on another machine, a TPU VM (this machine), or this host's GPUs or CPU.

    `address`: name or address of a TPU Node. `chosen_by`: the option or environment variable that chose it.
    """

    kind: Kind
    address: str = ""
    chosen_by: str

    @property
    def is_tpu(self) -> bool:
        return self.kind != "host"

    def __str__(self) -> str:
        return f"{self.kind} {self.address}".strip() + f" ({self.chosen_by})"


def choose(tpu: str, *, environment: Mapping[str, str], chips_here: bool) -> Target:
    """Return the accelerator for `tpu`, a value of --tpu. With "auto", a variable of `environment` may name it.

    `chips_here`: whether this machine has TPU chips. Raises: ConfigError if the value is malformed.
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
        if value and chips_here and variable == "TPU_NAME" and not _is_address(value):
            return Target(kind="tpu-vm", chosen_by=f"TPU chips in this machine, which {variable}={value} names")
        if value:
            return _named(value, chosen_by=f"{variable}={value}")
    if chips_here:
        return Target(kind="tpu-vm", chosen_by="TPU chips in this machine")
    return Target(kind="host", chosen_by=_NONE_FOUND)


def backend(option: Backend, target: Target) -> Literal["tensorflow", "jax"]:
    """Return the backend for `option`, a value of --backend. Raises: ConfigError for JAX with a TPU Node."""
    if option == "jax" and target.kind == "tpu-node":
        raise ConfigError(
            f"--backend jax with a TPU Node ({target.address}), expected a TPU in this machine",
            remedy="leave --backend out, or train on a TPU VM with --tpu local",
        )
    if option != "auto":
        return option
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("tensorflow-tpu")  # without it, TensorFlow finds no TPU
        return "tensorflow"
    jax_drives = target.kind == "tpu-vm" and importlib.util.find_spec("jax") is not None
    return "jax" if jax_drives else "tensorflow"


def hardware(platform: str, count: int) -> str:
    """Describe devices in words, such as "2 GPUs". `platform`: their type in TensorFlow or JAX, such as cpu."""
    return {"cpu": "the CPU", "tpu": "a TPU"}.get(platform.lower()) or some(count, "GPU")


def missed_tpu(target: Target, instead: str) -> tuple[str, ...]:
    """Return the two lines of a warning if --tpu auto found no TPU, else (). `instead`: such as training on the CPU."""
    if target.chosen_by != _NONE_FOUND:
        return ()
    return (
        f"warning: no TPU found ({', '.join(_VARIABLES)} are not set, and this machine has no TPU chips): {instead}",
        "remedy: for a TPU, give --tpu NAME, --tpu grpc://IP:8470 or --tpu local; without a TPU, give --tpu none",
    )


def place(target: Target, hardware: str) -> str:
    """Describe the devices, with the option or variable that chose them. `hardware`: a host's devices, in words."""
    return str(target) if target.is_tpu else f"{hardware} ({target.chosen_by})"


def has_tpu_chips() -> bool:
    """Return whether this machine is a TPU VM: it has TPU device files (/dev/vfio counts only with libtpu)."""
    if glob.glob("/dev/accel[0-9]*"):
        return True
    return bool(glob.glob("/dev/vfio/[0-9]*")) and importlib.util.find_spec("libtpu") is not None


def require_reachable_path(target: Target, *, option: str, path: str) -> None:
    """Check that the target can open the path of an option. A TPU Node opens only gs://. Raises: ConfigError."""
    if target.kind == "tpu-node" and not path.startswith("gs://"):
        raise ConfigError(
            f"{option} {path} with a TPU Node ({target.address}), expected a gs:// address, since the TPU's host is "
            "another machine, which cannot open the files of this machine",
            remedy=f"copy the folder to a bucket and give {option} gs://BUCKET/FOLDER, or train on a TPU VM with "
            "--tpu local",
        )


def require_whole_cluster(environment: Mapping[str, str]) -> None:
    """Check that the cluster in the environment variables is complete, and JAX's. Raises: ConfigError."""
    if environment.get(COORDINATOR):
        if missing := [name for name in CLUSTER if not environment.get(name, "").strip().isdigit()]:
            raise ConfigError(
                f"{COORDINATOR}={environment[COORDINATOR]:.80}, but {' and '.join(missing)} without a number",
                remedy=f"set {CLUSTER[0]} to the number of processes and {CLUSTER[1]} to the number of this one, from "
                f"0; or unset {COORDINATOR} to train in this process only",
            )
        return
    text = environment.get("TF_CONFIG", "").strip()
    if not text:
        return
    try:
        num_tasks = sum(len(tasks) for tasks in json.loads(text).get("cluster", {}).values())
    except (ValueError, AttributeError, TypeError):
        num_tasks = 2  # unreadable: assume several processes
    if num_tasks > 1:
        raise ConfigError(
            f"TF_CONFIG={text:.80}, expected no cluster, since each process would train alone, into the same folder",
            remedy="start a single process with an empty TF_CONFIG; on several TPU hosts, use JAX (--tpu local)",
        )


def _is_address(value: str) -> bool:
    return "://" in value or re.fullmatch(r"[\w.\-]+:\d+", value) is not None


def _named(address: str, *, chosen_by: str) -> Target:
    if _is_address(address) and "://" not in address:
        address = f"grpc://{address}"
    scheme, separator, rest = address.partition("://")
    malformed = separator and (scheme != "grpc" or ":" not in rest)
    if not address or malformed or address.lower() in _HOSTS:
        raise ConfigError(
            f"{chosen_by}: {address!r}, expected auto, local, none, the name of a TPU, or grpc://IP:8470",
            remedy="`gcloud compute tpus list` shows names and addresses; --tpu none uses this machine's GPUs or CPU "
            "(CUDA_VISIBLE_DEVICES=-1 hides the GPUs)",
        )
    return Target(kind="tpu-node", address=address, chosen_by=chosen_by)
