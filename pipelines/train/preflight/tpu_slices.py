"""TPU slices by name, with the peak rates and memory of a replica.

Peak rates are for matrix products in bfloat16, a TPU's default even for float32 values. Sources: the pages "TPU v2" to
"TPU7x" of Google Cloud's documentation (docs/system-architecture-tpu-vm); for v2 and v3 also CACM 63(7), 2020, table 3,
and for v4 arXiv:2304.01433, table 4.
"""

import dataclasses
import math
import re
from typing import Any

from tfrecord_io.errors import ConfigError

_GIB = 2**30
_NAME = re.compile(r"((?:v|tpu)\d\w*?)-(\d+)\Z")


@dataclasses.dataclass(frozen=True)
class TpuGeneration:
    """A TPU generation, with the rates and memory of a chip. `dimensions`: of the grid of chips.

    `sizes`: the numbers in the names of its slices. A number is `named_per_replica` times the number of replicas: v3-8
    has 4 chips with 2 replicas each; v4-8 has 4 chips with one replica each, of 2 cores.
    """

    name: str
    dimensions: int
    teraflops: float
    gigabytes_per_s: float
    gibibytes: int
    replicas_per_chip: int
    named_per_replica: int
    sizes: str

    @property
    def replica_flops_per_s(self) -> float:
        return self.teraflops * 1e12 / self.replicas_per_chip

    @property
    def replica_bytes_per_s(self) -> float:
        return self.gigabytes_per_s * 1e9 / self.replicas_per_chip

    @property
    def replica_bytes(self) -> int:
        return self.gibibytes * _GIB // self.replicas_per_chip


_CUBES = "8 16 32 64 128 256 512 1024 2048"
_SQUARES = "1 4 8 16 32 64 128 256"
GENERATIONS = {
    generation.name: generation
    for generation in (
        TpuGeneration("v2", 2, 45, 700, 16, 2, 1, "8 32 128 256 512"),
        TpuGeneration("v3", 2, 123, 900, 32, 2, 1, "8 32 64 128 256 512 1024 2048"),
        TpuGeneration("v4", 3, 275, 1200, 32, 1, 2, _CUBES),
        TpuGeneration("v5e", 2, 197, 819, 16, 1, 1, _SQUARES),
        TpuGeneration("v5p", 3, 459, 2765, 95, 1, 2, _CUBES),
        TpuGeneration("v6e", 2, 918, 1640, 32, 1, 1, _SQUARES),
        TpuGeneration("tpu7x", 3, 2307, 7380, 192, 2, 1, _CUBES),
    )
}


def peak_flops_per_s(device_kind: str) -> float:
    """Return a device's peak FLOPs per second, or 0 if unknown. `device_kind`: the device's name in JAX."""
    kinds = {"v5lite": "v5e", "v5": "v5p", "v6lite": "v6e", "7x": "tpu7x"}
    name = device_kind.removeprefix("TPU").strip().replace(" ", "")
    generation = GENERATIONS.get(kinds.get(name, name))
    return generation.replica_flops_per_s if generation is not None else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A TPU slice, with `replicas` that train together."""

    name: str
    generation: TpuGeneration
    replicas: int

    @property
    def chips(self) -> int:
        return self.replicas // self.generation.replicas_per_chip

    @property
    def topology(self) -> str:
        """Name of the slice's grid of chips in libtpu, such as v5e:2x4, nearly a square or cube."""
        sides = [1] * self.generation.dimensions
        while math.prod(sides) < self.chips:
            sides[sides.index(min(sides))] *= 2
        return f"{self.generation.name}:{'x'.join(map(str, sorted(sides, key=lambda side: (side == 1, side))))}"

    @property
    def layout(self) -> dict[str, Any]:
        """More options of libtpu for the grid: a v4 chip's two cores work as one; a single chip is a host by itself."""
        single = {"chips_per_host_bounds": [1, 1, 1]} if self.chips == 1 else {}
        return {"chip_config_name": "megacore", **single} if self.generation.name == "v4" else single


def parse(name: str) -> Slice:
    """Return the slice with a name such as v3-8. Raises: ConfigError."""
    matched = _NAME.match(name.strip().lower())
    if matched:
        wanted = "v5e" if matched[1] == "v5litepod" else matched[1]
        generation = GENERATIONS.get(wanted)
        if generation is not None and matched[2] in generation.sizes.split():
            replicas = int(matched[2]) // generation.named_per_replica
            return Slice(name=f"{wanted}-{matched[2]}", generation=generation, replicas=replicas)
    known = "; ".join(f"{generation.name}-N (N: {generation.sizes})" for generation in GENERATIONS.values())
    raise ConfigError(
        f"--preflight {name!r}, expected the name of a TPU: {known}",
        remedy="choose one of these names, such as v3-8; v5litepod-8 is the same as v5e-8",
    )
