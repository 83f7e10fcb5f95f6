"""Report of a preflight: a table for people, one JSON object for programs."""

import json
from typing import Any

from pipelines.terminal import tables
from pipelines.train.preflight.compiler import Compiled
from pipelines.train.preflight.preflight import Preflight

_GIB = 2**30


def write(result: Preflight, *, as_programs: bool) -> None:
    """Print the table on stderr and, if `as_programs`, the JSON object on stdout."""
    config = result.config
    title = f"{config.model}, {config.task}, {config.precision}, rows of {result.row_length}, on {result.slice.name}"
    tables.console().print(tables.table("what", "value", rows=_rows(result), title=title, show_header=False))
    if as_programs:
        print(json.dumps(as_json(result)), flush=True)


def as_json(result: Preflight) -> dict[str, Any]:
    """Return the result as a JSON object of bytes, seconds and rates; unknown values are None."""
    step, seconds, (fits, too_large) = result.step, result.seconds, result.bounds or (None, None)
    compiled = step if isinstance(step, Compiled) else None
    return {
        "slice": result.slice.name,
        "replicas": result.slice.replicas,
        "batch_per_replica": result.batch,
        "global_batch_size": result.config.global_batch_size,
        "precision": result.config.precision,
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
        "least_hours": result.hours,
        "largest_batch_per_replica": fits,
        "smallest_batch_too_large": too_large,
        "compile_seconds": compiled and compiled.seconds,
        "versions": dict(compiled.versions) if compiled else None,
    }


def _rows(result: Preflight) -> list[tuple[str, str]]:
    wanted, step, seconds, rate = result.slice, result.step, result.seconds, result.steps_per_s
    there = f"{wanted.generation.replica_bytes / _GIB:.0f} GiB"
    rows = [
        ("slice", f"{wanted.chips} chips, {wanted.replicas} replicas"),
        ("batch", f"{result.config.global_batch_size:,} in all, {result.batch:,} a replica"),
        ("compiles", "yes"),
    ]
    if isinstance(step, Compiled) and rate is not None:
        used, share = step.memory_bytes / _GIB, step.memory_bytes / wanted.generation.replica_bytes
        versions = ", ".join(f"{name} {version}" for name, version in step.versions.items())
        both = ", ".join(f"{name} {1e3 * value:,.2f} ms" for name, value in seconds.items())
        rows += [
            ("memory a replica", f"{used:.2f} of {there} ({share:.0%}): fits"),
            ("work a step", f"{step.flops / 1e9:,.1f} GFLOP, {step.traffic_bytes / 1e9:,.2f} GB of memory traffic"),
            ("step at best", f"{1e3 / rate:,.2f} ms, bound by {max(seconds, key=lambda name: seconds[name])} ({both})"),
            ("rate at best", f"{rate:,.1f} steps/s, {result.examples_per_s:,.0f} examples/s"),
            ("run at best", f"{result.config.total_steps:,} steps in {result.hours:,.2f} h"),
            ("compiler", f"{versions}, in {step.seconds:.0f} s"),
        ]
    else:
        rows.append(("memory a replica", f"more than {there}: does not fit"))
    if result.bounds is not None:
        fits, too_large = result.bounds
        text = "none that was tried fits" if too_large != 1 else "not even 1 fits"
        if fits:
            text = f"{fits:,} a replica fits, {fits * wanted.replicas:,} in all"
            text += f"; {too_large:,} does not" if too_large else "; more may fit"
        rows.append(("largest batch", text))
    rows.append(("not counted", "the time of what is exchanged, and the input"))
    return rows
