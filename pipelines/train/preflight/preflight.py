"""Run a preflight: compile the step for a TPU slice, compute a bound on its speed, and find the largest batch.

The bound is the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): a step takes at least as long as its
arithmetic at the peak rate, and as its memory traffic at the full bandwidth. The compiler counts a loop's body once, so
the bound is too optimistic for an RNN.

Memory grows nearly linearly with the batch. Two batches determine its growth, and a third confirms it.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.terminal import tables
from pipelines.train import setup
from pipelines.train.config import TrainConfig
from pipelines.train.errors import CompilerError, UnfitError
from pipelines.train.preflight import compiler, tpu_slices
from pipelines.train.preflight.compiler import Compiled
from pipelines.train.preflight.tpu_slices import Slice
from pipelines.train.setup import TrainingSetup
from pipelines.train.targets import Target
from tfrecord_io.shown import duration, some

# Maximum ratio of the second batch to the first, since the first estimate may be far off.
_LEAP = 16
_PROBES = 4
_GIB = 2**30
# Target share of the memory. The system reserves a share of up to 0.07.
_AIM = 0.93

# The largest batch known to fit, or 0, and the smallest batch known not to fit, or None.
Bounds = tuple[int, int | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """Result of a preflight. `batch` and `bounds` are per device. Rates are upper bounds over all devices.

    `shares`: result of `setup.shares`. `step`: the compiled step, or the compiler's message if it does not fit.
    `bounds`: result of `largest`; None if not requested.
    """

    slice: Slice
    config: TrainConfig
    row_length: int
    batch: int
    shares: Mapping[str, Mapping[str, float]]
    step: Compiled | str
    bounds: Bounds | None

    @property
    def seconds(self) -> dict[str, float]:
        """Two lower bounds for a step's time in seconds, "arithmetic" and "memory"; empty if the step does not fit."""
        if isinstance(self.step, str):
            return {}
        chip = self.slice.generation
        return {
            "arithmetic": self.step.flops / chip.replica_flops_per_s,
            "memory": self.step.traffic_bytes / chip.replica_bytes_per_s,
        }

    @property
    def steps_per_s(self) -> float | None:
        return 1.0 / max(1e-12, *self.seconds.values()) if self.seconds else None

    @property
    def examples_per_s(self) -> float | None:
        return self.steps_per_s and self.steps_per_s * self.batch * self.slice.replicas


def run_preflight(config: TrainConfig, *, say: Callable[[str], None]) -> Preflight:
    """Run a preflight for the TPU slice that `config.preflight` names. `say` is called with lines about its progress.

    Raises: ConfigError, ReaderError, and the errors of `compile_for`.
    """
    wanted = tpu_slices.parse(config.preflight or "")
    compiler.require()
    job = checked(config, wanted)
    ends, parts, taken = time.monotonic() + 60 * config.preflight_minutes, config.accumulate, [0.0]

    def compiled(batch: int) -> Compiled | str:
        began = time.monotonic()
        say(f"batch of {batch} per replica: compiling")
        changed = dataclasses.replace(job.config, global_batch_size=batch * wanted.replicas, replicas=None)
        result = compiler.compile_for(wanted, changed, seconds=max(1.0, ends - began))
        taken.append(time.monotonic() - began)
        used = f"{result.memory_bytes / _GIB:.2f} GiB" if isinstance(result, Compiled) else f"does not fit: {result}"
        say(f"batch of {batch} per replica: {used} ({duration(taken[-1])})")
        return result

    def memory_of(rows: int) -> int | None:
        try:
            if time.monotonic() + max(taken) > ends:
                raise CompilerError("no time for another compilation")
            result = compiled(rows * parts)
        except CompilerError as error:
            say(f"batch of {rows * parts} per replica: {error.cause}")
            raise
        return result.memory_bytes if isinstance(result, Compiled) else None

    batch, bounds = job.config.global_batch_size // wanted.replicas, None
    step = compiled(batch)
    if config.largest_batch:  # try only multiples of `accumulate`
        memory, fixed = (step.memory_bytes, step.argument_bytes) if isinstance(step, Compiled) else (None, 0)
        limit = wanted.generation.replica_bytes
        fits, too_large = largest(memory_of, known={batch // parts: memory}, fixed_bytes=fixed, limit_bytes=limit)
        bounds = fits * parts, too_large and too_large * parts
    return Preflight(
        slice=wanted,
        config=job.config,
        row_length=job.data.manifest.row_length,
        batch=batch,
        shares=setup.shares(job),
        step=step,
        bounds=bounds,
    )


def checked(config: TrainConfig, wanted: Slice) -> TrainingSetup:
    """Check options and data like the trainer, without a TPU. Return the setup for the data's longest rows."""
    config.require_equal_parts(wanted.replicas, place=wanted.name)
    job = setup.prepared(config, Target(kind="tpu-vm", chosen_by="--preflight"))
    *_, longest = setup.by_length(job.data).values()  # which needs the most memory
    return dataclasses.replace(job, data=longest)


def require_fit(result: Preflight) -> None:
    """Check that the step fits into a replica's memory. Raises: UnfitError."""
    if isinstance(result.step, Compiled):
        return
    replicas, (fits, _) = result.slice.replicas, result.bounds or (0, None)
    raise UnfitError(
        f"--global-batch-size {result.config.global_batch_size} on {result.slice.name} "
        f"({some(replicas, 'replica')} with {some(result.batch, 'row')} each): the step does not fit: {result.step}",
        remedy=f"--global-batch-size {fits * replicas} fits"
        if fits
        else "give a smaller --global-batch-size or --model, --shard-model, --precision bfloat16, or shorter rows",
    )


def largest(
    memory_of: Callable[[int], int | None], *, known: Mapping[int, int | None], fixed_bytes: int, limit_bytes: int
) -> Bounds:
    """Find the largest batch that fits and the smallest that does not, with at most 4 calls of `memory_of`.

    `memory_of`: returns the bytes that a batch needs, or None if it does not fit. `known`: earlier results, by batch.
    `fixed_bytes`: estimate of the bytes that do not grow with the batch. `limit_bytes`: a replica's memory.
    """
    memory = dict(known)
    with contextlib.suppress(CompilerError):
        for _ in range(_PROBES):
            guess = _next_batch(memory, fixed_bytes=fixed_bytes, limit_bytes=limit_bytes)
            if guess in memory:
                break
            memory[guess] = memory_of(guess)
    return _bounds(memory)


def _bounds(known: Mapping[int, int | None]) -> Bounds:
    low = max((batch for batch, memory in known.items() if memory is not None), default=0)
    return low, min((batch for batch, memory in known.items() if memory is None), default=None)


def _next_batch(known: Mapping[int, int | None], *, fixed_bytes: int, limit_bytes: int) -> int:
    fits = sorted((batch, memory) for batch, memory in known.items() if memory is not None)
    low, high = _bounds(known)
    if high is not None and not fits:
        return _rounded(high // 4)
    if len(fits) > 2 or (high is not None and high - low <= max(8, low // 8)):
        return low
    (rows, memory), (_, most) = fits[-2] if len(fits) > 1 else (0, fixed_bytes), fits[-1]
    guess = low + max(0, int((_AIM * limit_bytes - most) * (low - rows) / max(1, most - memory)))
    if high is not None and guess >= high:
        return _rounded((low + high) // 2)
    return max(low, _rounded(guess if len(fits) > 1 or high is not None else min(guess, low * _LEAP)))


def _rounded(batch: int) -> int:
    return batch // 8 * 8 if batch >= 8 else max(size for size in (1, 2, 4) if size <= max(1, batch))


def report(result: Preflight, *, as_programs: bool) -> None:
    """Print a preflight as a table on stderr and, if `as_programs`, also as JSON on stdout."""
    config = result.config
    title = f"{config.model}, {config.task}, {config.precision}, rows of {result.row_length}, on {result.slice.name}"
    tables.console().print(tables.table("what", "value", rows=_rows(result), title=title, show_header=False))
    if as_programs:
        print(json.dumps(as_json(result)), flush=True)


def as_json(result: Preflight) -> dict[str, Any]:
    """Return a preflight as a JSON object, with None for unknown values."""
    step, seconds, (fits, too_large) = result.step, result.seconds, result.bounds or (None, None)
    compiled = step if isinstance(step, Compiled) else None
    return {
        "slice": result.slice.name,
        "replicas": result.slice.replicas,
        "batch_per_replica": result.batch,
        "global_batch_size": result.config.global_batch_size,
        "precision": result.config.precision,
        "datasets": result.shares,
        "compiles": True,
        "fits": compiled is not None,
        "hbm_bytes": compiled and compiled.memory_bytes,
        "hbm_bytes_there": result.slice.generation.replica_bytes,
        "out_of_memory": step if isinstance(step, str) else None,
        "flops_per_step": compiled and compiled.flops,
        "bytes_per_step": compiled and compiled.traffic_bytes,
        "least_step_seconds": max(seconds.values()) if seconds else None,
        "bound": max(seconds, key=lambda name: seconds[name]) if seconds else None,
        "most_steps_per_s": result.steps_per_s,
        "most_examples_per_s": result.examples_per_s,
        "least_hours": result.steps_per_s and result.config.total_steps / result.steps_per_s / 3600,
        "largest_batch_per_replica": fits,
        "smallest_batch_too_large": too_large,
        "compile_seconds": compiled and compiled.seconds,
        "versions": dict(compiled.versions) if compiled else None,
    }


def _rows(result: Preflight) -> list[tuple[str, str]]:
    wanted, step, seconds, rate = result.slice, result.step, result.seconds, result.steps_per_s
    total = result.config.total_steps
    memory = f"{wanted.generation.replica_bytes / _GIB:.0f} GiB"
    rows = [
        ("slice", f"{some(wanted.chips, 'chip')}, {some(wanted.replicas, 'replica')}"),
        ("batch", f"{result.config.global_batch_size:,} in total, {result.batch:,} per replica"),
        ("compiles", "yes"),
    ]
    for name, part in result.shares.items():
        size = f"{some(int(part['rows']), 'row')}, {some(int(part['tokens']), 'token')}"
        rows.append((name, f"{size}, {part['epochs']:.2f} epochs"))
    if isinstance(step, Compiled) and rate is not None:
        used, share = step.memory_bytes / _GIB, step.memory_bytes / wanted.generation.replica_bytes
        versions = ", ".join(f"{name} {version}" for name, version in step.versions.items())
        both = ", ".join(f"{name} {1e3 * value:,.2f} ms" for name, value in seconds.items())
        rows += [
            ("memory per replica", f"{used:.2f} of {memory} ({share:.0%}): fits"),
            ("work per step", f"{step.flops / 1e9:,.1f} GFLOP, {step.traffic_bytes / 1e9:,.2f} GB of memory traffic"),
            ("step at best", f"{1e3 / rate:,.2f} ms, bound by {max(seconds, key=lambda name: seconds[name])} ({both})"),
            ("rate at best", f"{rate:,.1f} steps/s, {result.examples_per_s:,.0f} examples/s"),
            ("run at best", f"{some(total, 'step')} in {duration(total / rate)}"),
            ("compiler", f"{versions}, in {duration(step.seconds)}"),
        ]
    else:
        rows.append(("memory per replica", f"more than {memory}: does not fit"))
    if result.bounds is not None:
        fits, too_large = result.bounds
        text = "no tried batch fits" if too_large != 1 else "not even 1 fits"
        if fits:
            text = f"{fits:,} per replica fits, {fits * wanted.replicas:,} in total"
            text += f"; {too_large:,} does not fit" if too_large else "; more may fit"
        rows.append(("largest batch", text))
    rows.append(("not counted", "communication between chips, and input"))
    return rows
