"""Compile the trainer's JAX step for all devices of a TPU slice.

    python -m pipelines.train.preflight.compile_step REQUEST.json RESULT.json

The compiler in libtpu needs no chip (ahead-of-time compilation, jax.experimental.topologies). Only the model's initial
weights are allocated.
"""

import importlib.metadata
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.experimental import topologies
from jax.sharding import Mesh

from pipelines.train.config import TrainConfig
from pipelines.train.device_backend import built, element_specs
from pipelines.train.errors import StepError, said
from pipelines.train.on_jax.global_step import AXIS, GlobalStep
from pipelines.train.preflight import tpu_slices
from pipelines.train.preflight.preflight import checked
from pipelines.train.preflight.tpu_slices import Slice
from tfrecord_io.errors import PrepError

_LIBRARIES = ("<", *(str(Path(module.__file__ or "").parent) for module in (jax, keras, np, tf)))
_OWN = str(Path(__file__).parents[1])
# JAX's errors for programs that need a data-dependent value or shape.
_OF_DATA = (
    *(jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError),
    jax.errors.TracerIntegerConversionError,
)


def main() -> None:
    request, result = map(Path, sys.argv[1:])
    job = json.loads(request.read_text())
    os.chdir(job["folder"])
    answer: dict[str, Any]
    try:
        answer = _compile(TrainConfig(**job["config"]), tpu_slices.parse(job["slice"]))
    except PrepError as error:
        answer = {"refused": [type(error).__name__, error.cause, error.remedy]}
    result.write_text(json.dumps(answer))


def _compile(config: TrainConfig, wanted: Slice) -> dict[str, Any]:
    job = checked(config, wanted)
    try:
        devices = topologies.get_topology_desc(wanted.topology, platform="tpu", **wanted.layout).devices
        step = GlobalStep(built(job), job, mesh=Mesh(np.array(devices), (AXIS,)), abstract=True)
        [specs] = element_specs(job, replicas=len(devices))

        def whole(spec: tf.TensorSpec) -> jax.ShapeDtypeStruct:
            rows, *rest = spec.shape
            dtype = jax.dtypes.canonicalize_dtype(spec.dtype.as_numpy_dtype)
            return jax.ShapeDtypeStruct((rows * len(devices), *rest), dtype, sharding=step.by_row)

        batch = jax.tree.map(whole, specs)
        began = time.monotonic()
        program, flops = step.program(batch)
    except jax.errors.JaxRuntimeError as error:  # its message shows the kind
        message = " ".join(str(error).partition("See http")[0].split())[:600]
        if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
            return {"out_of_memory": message}
        raise StepError(
            f"the TPU compiler rejects the step for {wanted.name}: {message}",
            remedy="change the operation in the message, which contains the name of its layer",
        ) from error
    except Exception as error:  # from JAX, Keras or the model's code
        raise explained(error) from error
    stats, costs = program.memory_analysis(), program.cost_analysis()
    parts = ("argument", "output", "temp", "generated_code")
    sizes = {part: int(getattr(stats, f"{part}_size_in_bytes")) for part in parts}
    return {
        "compiled": {
            "argument_bytes": sizes["argument"],
            "memory_bytes": sum(sizes.values()) - int(stats.alias_size_in_bytes),
            "flops": flops,
            "traffic_bytes": float(costs["bytes accessed"]) * config.accumulate,  # as in `GlobalStep.program`
            "seconds": time.monotonic() - began,
            "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")},
        }
    }


def explained(error: Exception) -> PrepError:
    """Convert an error from tracing the step to a PrepError that names the line of code."""
    chain: list[BaseException] = [error]  # the root cause last
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    of_data = next((link for link in chain if isinstance(link, _OF_DATA)), None)
    if isinstance(error, PrepError) and of_data is None:
        return error
    cause = of_data or chain[-1]
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
    users = [frame for frame in frames if not frame.filename.startswith(_OWN)] or frames
    place = f"{users[-1].filename}:{users[-1].lineno}" if users else "the model"
    problem = "JAX cannot trace the step"
    remedy = "write the model in keras.ops, without TensorFlow's operations and text"
    if of_data is not None:
        problem = "a branch or a shape depends on the data, which is unknown during compilation"
        remedy = "keep every row, and select values by keras.ops.where(mask, values, 0) or by weights of 0"
    return StepError(f"{place}: {problem} ({said(cause)})", remedy=remedy)


if __name__ == "__main__":
    main()
