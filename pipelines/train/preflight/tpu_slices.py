"""TPU slices by name, and what one replica of each has.

Peak rates are per chip, of matrix products in bfloat16 (which a TPU also uses for float32 values, unless told
otherwise), as the pages "TPU v2" to "TPU v6e" of Google Cloud's documentation (docs/system-architecture-tpu-vm) give
them; v2 and v3 also in "A Domain-Specific Supercomputer for Training Deep Neural Networks" (CACM 63(7), 2020, table 3),
v4 also in "TPU v4" (ISCA 2023, arXiv:2304.01433, table 4).

    generation   TFLOP/s   GB/s   GiB   replicas     the number in a name counts
    v2                45    700    16   2 a chip     cores:  v2-8 is 4 chips, 8 replicas
    v3               123    900    32   2 a chip     cores:  v3-8 is 4 chips, 8 replicas
    v4               275   1200    32   1 a chip     cores:  v4-8 is 4 chips, 4 replicas (both cores work as one)
    v5e              197    819    16   1 a chip     chips:  v5e-8, or v5litepod-8
    v5p              459   2765    95   1 a chip     cores:  v5p-8 is 4 chips, 4 replicas
    v6e              918   1640    32   1 a chip     chips:  v6e-8
"""

from __future__ import annotations

import dataclasses
import re

from tfrecord_io.errors import ConfigError

__all__ = ["GENERATIONS", "Generation", "Slice", "parse", "peak_flops_per_s"]

_GIB = 2**30
_NAME = re.compile(r"(v\d\w*?)-(\d+)\Z")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """What one chip has. `topology` is the smallest that the compiler knows; a replica's program is the same on all.

    `chip_config` is libtpu's name for both cores of a v4 chip working as one, which is not what it assumes.
    """

    name: str
    topology: str
    teraflops: float
    gigabytes_per_s: float
    gibibytes: int
    replicas_per_chip: int
    named_per_replica: int
    sizes: str
    chip_config: str | None = None

    @property
    def replica_flops_per_s(self) -> float:
        return self.teraflops * 1e12 / self.replicas_per_chip

    @property
    def replica_bytes_per_s(self) -> float:
        return self.gigabytes_per_s * 1e9 / self.replicas_per_chip

    @property
    def replica_bytes(self) -> int:
        """HBM of one replica."""
        return self.gibibytes * _GIB // self.replicas_per_chip


def _generation(
    name: str, topology: str, *, rates: tuple[float, float], gibibytes: int, counted: tuple[int, int], sizes: str
) -> Generation:
    return Generation(
        name=name,
        topology=topology,
        teraflops=rates[0],
        gigabytes_per_s=rates[1],
        gibibytes=gibibytes,
        replicas_per_chip=counted[0],
        named_per_replica=counted[1],
        sizes=sizes,
        chip_config="megacore" if name == "v4" else None,
    )


GENERATIONS = {
    each.name: each
    for each in (
        _generation("v2", "v2:2x2", rates=(45, 700), gibibytes=16, counted=(2, 1), sizes="8 32 128 256 512"),
        _generation(
            "v3", "v3:2x2", rates=(123, 900), gibibytes=32, counted=(2, 1), sizes="8 32 64 128 256 512 1024 2048"
        ),
        _generation(
            "v4", "v4:2x2x1", rates=(275, 1200), gibibytes=32, counted=(1, 2), sizes="8 16 32 64 128 256 512 1024 2048"
        ),
        _generation("v5e", "v5e:2x2", rates=(197, 819), gibibytes=16, counted=(1, 1), sizes="1 4 8 16 32 64 128 256"),
        _generation(
            "v5p", "v5p:2x2x1", rates=(459, 2765), gibibytes=95, counted=(1, 2), sizes="8 16 32 64 128 256 512 1024"
        ),
        _generation("v6e", "v6e:2x2", rates=(918, 1640), gibibytes=32, counted=(1, 1), sizes="1 4 8 16 32 64 128 256"),
    )
}


def peak_flops_per_s(device_kind: str) -> float:
    """Peak rate of a device by the name that JAX has for it, 0 for one that is not in the table."""
    kinds = {"v5lite": "v5e", "v5": "v5p", "v6lite": "v6e"}
    name = device_kind.removeprefix("TPU").strip().replace(" ", "")
    generation = GENERATIONS.get(kinds.get(name, name))
    return generation.replica_flops_per_s if generation is not None else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
    """A TPU as one can be had: `replicas` train together, each on its part of the global batch."""

    name: str
    generation: Generation
    replicas: int

    @property
    def chips(self) -> int:
        return self.replicas // self.generation.replicas_per_chip or 1


def parse(name: str) -> Slice:
    """The slice of a name such as v3-8. Raises: ConfigError, with all that are known."""
    matched = _NAME.match(name.strip().lower())
    if matched:
        wanted = "v5e" if matched[1] == "v5litepod" else matched[1]
        generation = GENERATIONS.get(wanted)
        if generation is not None and matched[2] in generation.sizes.split():
            return Slice(
                name=f"{wanted}-{matched[2]}",
                generation=generation,
                replicas=int(matched[2]) // generation.named_per_replica,
            )
    known = "; ".join(f"{each.name}-N, N of {each.sizes}" for each in GENERATIONS.values())
    raise ConfigError(
        f"--preflight {name!r}, expected the name of a TPU: {known}",
        remedy="choose one of these, such as v3-8; v5litepod-8 is v5e-8",
    )
