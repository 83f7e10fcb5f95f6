"""The other process: compiles a StableHLO text for a TPU topology, without a TPU, and writes what it found as JSON.

    python -m pipelines.train.preflight.compile_for_tpu STEP.mlir RESULT.json --topology v3:2x2

Neither TensorFlow nor the network is used: JAX brings libtpu, whose compiler knows every generation (ahead-of-time
compilation, jax.experimental.topologies). Of JAX are used the topology, its compile-only client, and MLIR's parser.

RESULT.json is one of
    {"outcome": "compiled", "memory": {...bytes}, "flops": f, "bytes": b, "seconds": s, "device": "TPU v3", "versions"}
    {"outcome": "out_of_memory" | "refused", "message": text}
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import re
import time
from pathlib import Path
from typing import Any

__all__ = ["with_wide_booleans", "without_copies"]

_COPY = re.compile(r"\bmhlo\.copy (%[\w#:]+) : (tensor<[^>]*>)")
_BOOLEANS = re.compile(r'dense<"0x([0-9A-F]+)"> : tensor<((?:[0-9]+x)+)i1>')
_MEMORY = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporary": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
}


def without_copies(text: str) -> str:
    """The module with `mhlo.copy`, which TensorFlow writes and StableHLO has not, as reshapes to the same shape."""
    return _COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text)


def with_wide_booleans(text: str) -> str:
    """The module with its large boolean constants, which TensorFlow 2.21 writes as a bit for each value, in the form of
    younger releases of MLIR: a byte for each.
    """

    def widened(constant: re.Match[str]) -> str:
        count = math.prod(int(size) for size in constant[2].split("x") if size)
        data = bytes.fromhex(constant[1])
        if len(data) != -(-count // 8):
            return constant[0]
        wide = bytes(data[at // 8] >> at % 8 & 1 for at in range(count))
        return f'dense<"0x{wide.hex().upper()}"> : tensor<{constant[2]}i1>'

    return _BOOLEANS.sub(widened, text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--topology", required=True)
    parser.add_argument("--chip-config")
    arguments = parser.parse_args()
    how = {"chip_config_name": arguments.chip_config} if arguments.chip_config else {}
    found = _compile(without_copies(arguments.step.read_text()), topology=arguments.topology, how=how)
    arguments.result.write_text(json.dumps(found))


def _compile(text: str, *, topology: str, how: dict[str, str]) -> dict[str, Any]:
    from jax.experimental import topologies
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    device = topologies.get_topology_desc(topology, platform="tpu", **how).devices[0]
    with mlir.make_ir_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError:
            module = ir.Module.parse(with_wide_booleans(text))
        began = time.monotonic()
        try:
            executable = _compiled(module, device)
        except Exception as error:  # of JAX's own kind, whose name differs between versions; told apart by its words
            return _refusal(str(error))
        seconds = time.monotonic() - began
    return _measured(executable, seconds=seconds, device=device)


def _compiled(module: Any, device: Any) -> Any:
    import numpy as np
    from jax.interpreters import mlir
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]], np.int32))
    devices = xla_client.DeviceList((device,))
    try:
        return device.client.compile(module, devices, options)
    except TypeError:  # JAX before 0.8 takes bytes
        return device.client.compile(mlir.module_to_bytecode(module), devices, options)


def _refusal(message: str) -> dict[str, Any]:
    full = "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message
    return {"outcome": "out_of_memory" if full else "refused", "message": message}


def _measured(executable: Any, *, seconds: float, device: Any) -> dict[str, Any]:
    stats, costs = executable.get_compiled_memory_stats(), executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return {
        "outcome": "compiled",
        "memory": {name: int(getattr(stats, attribute)) for name, attribute in _MEMORY.items()},
        "flops": float(costs["flops"]),
        "bytes": float(costs["bytes accessed"]),
        "seconds": seconds,
        "device": device.device_kind,
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")},
    }


if __name__ == "__main__":
    main()
