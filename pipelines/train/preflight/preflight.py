"""Preflight of a training: compile the step for a TPU slice, bound its speed, and look for the largest batch.

The best possible speed is the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): no step is shorter than its
arithmetic at the peak rate, nor than its memory traffic at the memory's bandwidth,

    seconds >= max(flops / peak flops per s, bytes / bytes per s)

with the compiler's own counts for one device's part of the compiled program. Communication between devices and the
input are not included. The compiler counts a loop's body only once, so a model that loops over time (an RNN) does more
than is counted; with `--accumulate`, all counts are multiplied by the number of parts.

The search for the largest batch needs few compilations, which take from seconds to minutes each. Memory is roughly a
fixed part (weights, AdamW's means and squares) plus a part proportional to the batch. A line through the fixed part and
the largest batch known to fit gives the next one to try, among 1, 2, 4, and multiples of 8.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping

import tensorflow as tf

from pipelines.train import setup, tasks
from pipelines.train.config import TrainConfig
from pipelines.train.errors import CompilerError, UnfitError, graph_error
from pipelines.train.preflight import compiler, tpu_slices
from pipelines.train.preflight.compiler import Compiled
from pipelines.train.preflight.tpu_slices import Slice
from pipelines.train.setup import TrainingSetup
from pipelines.train.targets import Target

_WARM_UP, _FEED_SECONDS = 2, 2.5
# A batch to try is at most this many times the largest that fits, because the line may be far off.
_LEAP = 16


# The largest batch known to fit (0 for none), and the smallest known not to fit (or None).
Bounds = tuple[int, int | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """Result of a preflight; batches are per device, rates are upper bounds for all devices together.
    `step`: the compiler's message if it does not fit. `bounds`: of the largest batch, None if it was not looked for.
    """

    slice: Slice
    config: TrainConfig
    row_length: int
    batch: int
    step: Compiled | str
    reader_examples_per_s: float
    bounds: Bounds | None

    @property
    def seconds(self) -> dict[str, float]:
        """Lower bounds for a step by the roofline, in seconds: "arithmetic" and "memory"; empty if it does not fit."""
        if isinstance(self.step, str):
            return {}
        has = self.slice.generation
        seconds = self.step.flops / has.replica_flops_per_s, self.step.traffic_bytes / has.replica_bytes_per_s
        return dict(zip(("arithmetic", "memory"), seconds, strict=True))

    @property
    def steps_per_s(self) -> float | None:
        return 1.0 / max(1e-12, *self.seconds.values()) if self.seconds else None

    @property
    def examples_per_s(self) -> float | None:
        return self.steps_per_s and self.steps_per_s * self.batch * self.slice.replicas

    @property
    def hours(self) -> float | None:
        """Minimum hours for all steps of the training."""
        return self.steps_per_s and self.config.total_steps / self.steps_per_s / 3600

    @property
    def price(self) -> float | None:
        """Cost of these hours on all chips, in the currency of `--price-per-chip-hour`."""
        hourly = self.config.price_per_chip_hour
        return None if self.hours is None or hourly is None else self.hours * self.slice.chips * hourly


def run_preflight(config: TrainConfig, *, say: Callable[[str], None]) -> Preflight:
    """Run the preflight of a training for the slice `config.preflight`. `say` gets progress lines for people.

    Raises: ConfigError, ReaderError for options and data that do not fit; StepError if the step cannot be compiled;
        CompilerError if the compiler fails or exceeds its time limit.
    """
    wanted = tpu_slices.parse(config.preflight or "")
    compiler.require()
    job = checked(config, wanted)
    batches = _BatchCompiler(job.config, wanted=wanted, ends=time.monotonic() + 60 * config.preflight_minutes, say=say)
    batch = job.config.global_batch_size // wanted.replicas
    step = batches.compile(batch)
    reading = _examples_per_s(job, replicas=wanted.replicas)
    return Preflight(
        slice=wanted,
        config=job.config,
        row_length=job.data.manifest.row_length,
        batch=batch,
        step=step,
        reader_examples_per_s=reading,
        bounds=None if config.no_largest_batch else batches.bounds(batch, step),
    )


def checked(config: TrainConfig, wanted: Slice) -> TrainingSetup:
    """Check options and data as the trainer does, without a TPU or a model folder. Raises: as the trainer."""
    config.require_equal_parts(wanted.replicas, place=wanted.name)
    data = setup.open_data(config)
    setup.require_split(data, config.train_split, option="--train-split", all_have_it=True)
    config = dataclasses.replace(config, precision=config.precision or "bfloat16")
    config = config.sized(rows=data.num_examples(config.train_split))
    *_, data = setup.by_length(data).values()  # with several row lengths the longest, which needs the most memory
    return TrainingSetup(
        config=config,
        target=Target(kind="host", chosen_by="--preflight"),
        data=data,
        eval_split=None,
        task=tasks.bind(config, data.manifest),
    )


def require_fit(result: Preflight) -> None:
    """Check that the step fits into a replica's memory. Raises: UnfitError if not."""
    if isinstance(result.step, Compiled):
        return
    replicas, (fits, _) = result.slice.replicas, result.bounds or (0, None)
    raise UnfitError(
        f"--global-batch-size {result.config.global_batch_size} on {result.slice.name}, {result.batch} rows for each "
        f"of {replicas} replicas: the step does not fit: {result.step}",
        remedy=f"--global-batch-size {fits * replicas} fits"
        if fits
        else "choose a smaller --global-batch-size or model, --shard-model, --precision bfloat16, or shorter rows",
    )


def _examples_per_s(job: TrainingSetup, *, replicas: int) -> float:
    """Measure the reader's speed with the training's own input on this machine, in examples/s of one host.

    Raises: ReaderError if the data cannot be read.
    """
    batch = job.config.global_batch_size
    input_fn = job.data.input_fn(
        job.config.train_split, global_batch_size=batch, objective=job.task.objective, training=True
    )
    batches = iter(input_fn(tf.distribute.InputContext(num_replicas_in_sync=replicas)))
    try:
        for _ in range(_WARM_UP):
            next(batches)
        began, count = time.monotonic(), 0
        while (passed := time.monotonic() - began) < _FEED_SECONDS:
            next(batches)
            count += batch // replicas
    except tf.errors.OpError as error:
        raise graph_error(error, data=[job.data.root], asked="reading", remedy="lower the batch size") from error
    return count / passed


class GaveUp(Exception):
    """Exception that `memory_of` raises without a result or time left; it ends the search with what is known."""


def largest(
    memory_of: Callable[[int], int | None], *, known: Mapping[int, int | None], fixed_bytes: int, limit_bytes: int
) -> Bounds:
    """Search for the largest batch that fits, until the smallest that does not fit is within 8 rows or an eighth.

    `memory_of` returns the bytes for a batch, None if it does not fit; `known` has such results from before. The bytes
    that do not grow with the batch (`fixed_bytes`) and the available memory (`limit_bytes`) only guide the search.
    """
    known = dict(known)
    while True:
        low = max((batch for batch, memory in known.items() if memory is not None), default=0)
        high = min((batch for batch, memory in known.items() if memory is None), default=None)
        least = next((each for each in (1, 2, 4) if each > low), low // 8 * 8 + 8)
        if high is not None and (least >= high or (low and high - low <= max(8, low // 8))):
            return low, high
        guess = 0
        if memory := known.get(low):
            per_row = max(1.0, (memory - fixed_bytes) / low)
            guess = _rounded(int(min((limit_bytes - fixed_bytes) / per_row, low * _LEAP)))
        if high is None:
            batch = max(guess, least)
        else:  # a guess outside the bounds is replaced by their middle
            batch = guess if least <= guess < high else max(least, _rounded((low + high) // 2))
        try:
            known[batch] = memory_of(batch)
        except GaveUp:
            return low, high


def _rounded(batch: int) -> int:
    """Round down to 1, 2, 4 or a multiple of 8."""
    return batch // 8 * 8 if batch >= 8 else max(each for each in (1, 2, 4) if each <= max(1, batch))


class _BatchCompiler:
    """Compiler for several batch sizes within one time limit."""

    def __init__(self, config: TrainConfig, *, wanted: Slice, ends: float, say: Callable[[str], None]) -> None:
        self._config = config
        self._wanted = wanted
        self._ends = ends
        self._say = say
        self._longest = 0.0

    def compile(self, batch: int) -> Compiled | str:
        began = time.monotonic()
        self._say(f"batch {batch} a replica: compiling")
        config = dataclasses.replace(self._config, global_batch_size=batch * self._wanted.replicas, replicas=None)
        found = compiler.compile_for(self._wanted, config, seconds=max(1.0, self._ends - began))
        self._longest = max(self._longest, time.monotonic() - began)
        used = f"{found.memory_bytes / 2**30:.2f} GiB" if isinstance(found, Compiled) else f"does not fit: {found}"
        self._say(f"batch {batch} a replica: {used} ({time.monotonic() - began:.0f} s)")
        return found

    def bounds(self, batch: int, first: Compiled | str) -> Bounds:
        parts = self._config.accumulate  # a batch is cut into so many parts, so only multiples can be tried

        def memory_of(rows: int) -> int | None:
            if time.monotonic() + self._longest > self._ends:
                raise GaveUp
            try:
                found = self.compile(rows * parts)
            except CompilerError as error:  # out of time or host memory; the search keeps what it knows
                self._say(f"batch {rows * parts} a replica: {error.cause}")
                raise GaveUp from error
            return found.memory_bytes if isinstance(found, Compiled) else None

        fits, too_large = largest(
            memory_of,
            known={batch // parts: first.memory_bytes if isinstance(first, Compiled) else None},
            fixed_bytes=first.argument_bytes if isinstance(first, Compiled) else 0,
            limit_bytes=self._wanted.generation.replica_bytes,
        )
        return fits * parts, too_large and too_large * parts
