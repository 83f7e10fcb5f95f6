"""Run the TPU compiler in a separate process, which isolates its output and crashes.

The process's environment variables hide this machine's accelerators and the network (TPU_SKIP_MDS_QUERY: no metadata
server), and allow several such processes (ALLOW_MULTIPLE_LIBTPU_LOAD).
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pipelines
from pipelines.train.config import TrainConfig
from pipelines.train.errors import CompilerError, StepError
from pipelines.train.preflight.tpu_slices import Slice
from tfrecord_io import errors
from tfrecord_io.errors import ConfigError
from tfrecord_io.shown import duration

# Prefixes of variables that select a real TPU for JAX or libtpu, or affect the compiler.
_FOREIGN = ("TPU_", "LIBTPU_", "JAX_", "XLA_", "CLOUD_TPU_", "MEGASCALE_", "COLAB_TPU_")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The TPU compiler's figures for a step on one device.

    `argument_bytes`: size of state and batch. `seconds`: time of the compilation. `versions`: by package.
    """

    argument_bytes: int
    memory_bytes: int
    flops: float
    traffic_bytes: float
    seconds: float
    versions: Mapping[str, str]


def require() -> None:
    """Check that JAX and libtpu are installed. Raises: ConfigError."""
    missing = [name for name in ("jax", "libtpu") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"--preflight needs {' and '.join(missing)}, which cannot be imported",
            remedy="run `pip install '.[preflight]'`",
        )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for the compiler's process. `variables`: this process's."""
    kept = {name: value for name, value in variables.items() if not name.startswith(_FOREIGN)}
    packages = str(Path(pipelines.__path__[0]).parent)
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, (packages, kept.get("PYTHONPATH")))),
        "KERAS_BACKEND": "jax",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_LOG_DIR": "disabled",
        "TPU_MIN_LOG_LEVEL": "2",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }


def compile_for(wanted: Slice, config: TrainConfig, *, seconds: float) -> Compiled | str:
    """Compile the training step for a TPU slice, within `seconds`. Return a message if it needs too much memory.

    Raises: StepError if the step cannot be compiled; ConfigError if the model does not fit the dataset; CompilerError
    if the compiler crashes or times out.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        job = {"config": dataclasses.asdict(config), "slice": wanted.name, "folder": os.getcwd()}
        request.write_text(json.dumps(job))
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "pipelines.train.preflight.compile_step", str(request), str(result)],
                env=environment(os.environ),
                cwd=folder,  # no file of the user may shadow a package
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"the TPU compiler did not finish within {duration(seconds)}",
                remedy="give more --preflight-minutes; newer generations and larger models take minutes",
            ) from error
        if ended.returncode or not result.exists():
            lines = [line.strip() for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
            status = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit status {ended.returncode}"
            raise CompilerError(
                f"the TPU compiler ended with {status}: {' | '.join(lines[-3:])[-600:] or 'no message'}",
                remedy="run `pip install -U '.[preflight]'` for matching versions of jax and libtpu; if the compiler "
                "was killed, this machine may have too little memory",
            )
        answer = json.loads(result.read_text())
    if "refused" in answer:
        kind, cause, remedy = answer["refused"]
        raise getattr(errors, kind, StepError)(cause, remedy=remedy)
    return Compiled(**answer["compiled"]) if "compiled" in answer else str(answer["out_of_memory"])
