"""Main program of the compiler's process: compile the trainer's JAX step for all devices of a slice.

    python -m pipelines.train.preflight.compile_step REQUEST.json RESULT.json

    REQUEST.json   {"config": {...TrainConfig}, "slice": "v5e-8", "folder": where the user's model is imported from}
    RESULT.json    {"compiled": {...Compiled}} | {"out_of_memory": text} | {"refused": [kind of error, cause, remedy]}

libtpu's compiler needs no chip (ahead-of-time compilation, jax.experimental.topologies). Only the model's initial
weights are arrays.
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
    asked = json.loads(request.read_text())
    os.chdir(asked["folder"])
    found: dict[str, Any]
    try:
        found = _compile(TrainConfig(**asked["config"]), tpu_slices.parse(asked["slice"]))
    except PrepError as error:
        found = {"refused": [type(error).__name__, error.cause, error.remedy]}
    result.write_text(json.dumps(found))


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
            f"the TPU compiler refuses the step for {wanted.name}: {message}",
            remedy="look for the operation that it names in the model; operations keep their layer's name",
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
    """Return the error for a step that cannot be traced, with its line of code."""
    chain: list[BaseException] = [error]  # the root cause last
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    of_data = next((each for each in chain if isinstance(each, _OF_DATA)), None)
    if isinstance(error, PrepError) and of_data is None:
        return error
    cause = of_data or chain[-1]
    frames = [each for each in traceback.extract_tb(cause.__traceback__) if not each.filename.startswith(_LIBRARIES)]
    users = [each for each in frames if not each.filename.startswith(_OWN)] or frames
    place = f"{users[-1].filename}:{users[-1].lineno}" if users else "the model"
    what = "the step cannot be traced by JAX"
    remedy = "write the model in keras.ops, which both backends know: no operations of TensorFlow's own, no text"
    if of_data is not None:
        what = "a decision or a shape depends on the data, which are not known while the step is compiled"
        remedy = "let the program decide and keep every row: keras.ops.where(mask, values, 0), or weights of 0"
    return StepError(f"{place}: {what} ({said(cause)})", remedy=remedy)


if __name__ == "__main__":
    main()
