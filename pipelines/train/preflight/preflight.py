"""A whole preflight: the trainer's step for all devices of a TPU slice, compiled, and what follows from it.

How fast it could be at best is the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): no step is shorter than
its arithmetic at the peak rate, nor than its traffic at the bandwidth of the memory,

    seconds >= max(flops / peak flops per s, bytes / bytes per s)

with the compiler's own counts for one device's part of the program that it made. The time for exchanging values
between devices is not in it, nor is the input. A count is of a loop's body once: a model that loops over time (an RNN)
does more than is counted; of a step in parts (`--accumulate`) everything counts as often as there are parts.

The largest batch that fits is found with few compilations, since each takes from seconds to minutes. Memory is close to
a fixed part (weights, AdamW's means and squares) plus a part that grows with the batch: a line through that part and
the largest batch that fits leads to the one that should just fit, which is tried next, of 1, 2, 4, and multiples of 8.
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
# At most so many times what is known to fit is tried at once: the line may be far off.
_LEAP = 16


# The largest batch that was seen to fit, 0 for none, and the smallest that was seen not to, or None.
Bounds = tuple[int, int | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found. `step` is the compiler's words if it does not fit, `bounds` of the largest batch None if it was
    not looked for; batches are of one device, rates at best of all devices together.
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
        """The roofline of one device's part of the step: the least seconds of arithmetic and of memory; empty if it
        does not fit.
        """
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
        """Hours that all steps of the training take at best."""
        return self.steps_per_s and self.config.total_steps / self.steps_per_s / 3600

    @property
    def price(self) -> float | None:
        """Return what these hours cost on all chips, in the currency of the price that was given."""
        hourly = self.config.price_per_chip_hour
        return None if self.hours is None or hourly is None else self.hours * self.slice.chips * hourly


def run_preflight(config: TrainConfig, *, say: Callable[[str], None]) -> Preflight:
    """Compile the step of a training for the slice `config.preflight`. `say` takes lines of progress for people.

    Raises: ConfigError, ReaderError for options and data that do not fit; StepError if the step cannot be compiled;
        CompilerError if the compiler fails or takes longer than it may.
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
    """The training, as the trainer checks it, without a TPU and without a model folder. Raises: as the trainer."""
    config.require_equal_parts(wanted.replicas, place=wanted.name)
    data = setup.open_data(config)
    setup.require_split(data, config.train_split, option="--train-split", all_have_it=True)
    config = dataclasses.replace(config, precision=config.precision or "bfloat16")
    config = config.sized(rows=data.num_examples(config.train_split))
    *_, data = setup.by_length(data).values()  # of several lengths the longest, which needs the most memory
    return TrainingSetup(
        config=config,
        target=Target(kind="host", chosen_by="--preflight"),
        data=data,
        eval_split=None,
        task=tasks.bind(config, data.manifest),
    )


def require_fit(result: Preflight) -> None:
    """Raises: UnfitError if the step needs more memory than there is."""
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
    """Measure how fast the reader gives the training's own input on this machine, as one host would read it.

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
    """What `memory_of` raises when it has no answer, or no time: the search ends with what is known."""


def largest(
    memory_of: Callable[[int], int | None], *, known: Mapping[int, int | None], fixed_bytes: int, limit_bytes: int
) -> Bounds:
    """Search for the largest batch that fits, by asking `memory_of` for the bytes of a batch (None: does not fit),
    until the smallest that does not fit is within an eighth of it.

    `known` is what is known already: batch to bytes, or None. The bytes that do not grow with the batch, and the memory
    there is, only guide the search.
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
        else:  # once the line has pointed outside, halves are safe
            batch = guess if least <= guess < high else max(least, _rounded((low + high) // 2))
        try:
            known[batch] = memory_of(batch)
        except GaveUp:
            return low, high


def _rounded(batch: int) -> int:
    """The largest of 1, 2, 4, and multiples of 8 that is not above."""
    return batch // 8 * 8 if batch >= 8 else max(each for each in (1, 2, 4) if each <= max(1, batch))


class _BatchCompiler:
    """Compiler of one batch after the other, while there is time."""

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
        parts = self._config.accumulate  # a batch is cut into so many, so only its multiples can be tried

        def memory_of(rows: int) -> int | None:
            if time.monotonic() + self._longest > self._ends:
                raise GaveUp
            try:
                found = self.compile(rows * parts)
            except CompilerError as error:  # out of time, or of this machine's memory; what is known stays known
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
