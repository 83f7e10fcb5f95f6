"""Checks, before anything starts, whether a `tf.data` pipeline is fit for a TPU; each finding has a place and a remedy.

    readiness.check(dataset, tpu="node")                                   anybody's tf.data.Dataset
    readiness.check_data(data, "train", global_batch_size=1024, tpu="vm")  what a trainer reads of a Data or Mixture
    readiness.require(findings)                                            an error if one of them is fatal

    tpu="node"   the TPU's host is another machine: the graph is sent there, and sees Google Cloud Storage and nothing
                 of this machine, neither its files nor its Python
    tpu="vm"     this program runs on the TPU's host, or on the first of several: files can be local, and with one host
                 Python works too, though the chips wait for it

Looked at are the graph with all its functions (`graph_fitness`) and the element_spec (`element_fitness`); no record is
read. Paths that come from elsewhere than the graph, such as from the text of another file, cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, SupportsIndex, get_args

import tensorflow as tf

from tfrecord_io.errors import PrepError, ReaderError
from tfrecord_io.input_pipeline import input_plan
from tfrecord_io.input_pipeline.input_functions import InputFunctions
from tfrecord_io.input_pipeline.input_plan import Order
from tfrecord_io.objectives import Objective
from tfrecord_io.tpu_fitness import element_fitness, graph_fitness, graph_walk
from tfrecord_io.tpu_fitness.findings import Finding

__all__ = ["Batch", "Finding", "Tpu", "check", "check_data", "describe", "require"]

Tpu = Literal["node", "vm"]
Batch = Literal["global", "per_replica"]


def check(
    dataset: tf.data.Dataset, *, tpu: Tpu, num_replicas: int = 8, num_hosts: int = 1, batch: Batch = "global"
) -> list[Finding]:
    """Everything that keeps `dataset` from a TPU, or slows it down there.

    Args:
        tpu: "node" or "vm", see above.
        num_replicas: cores that train together; 8 on v2-8 and v3-8.
        num_hosts: machines that these are on.
        batch: whether an element is a "global" batch, which the strategy cuts up (Keras fit,
            experimental_distribute_dataset), or what one replica gets (distribute_datasets_from_function).

    Raises: ReaderError for arguments that make no sense, and while a graph is built.
    """
    _check_arguments(tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch=batch)
    try:
        graph = graph_walk.graph_of(dataset)
    except graph_walk.UnwritableError as error:
        findings = [_unwritable(error)]
    else:
        findings = [
            *graph_fitness.operation_findings(graph, remote=tpu == "node" or num_hosts > 1),
            *graph_fitness.size_findings(graph),
        ]
        if tpu == "node" or num_hosts > 1:
            findings += graph_fitness.path_findings(graph, gs_only=tpu == "node")
        if batch == "global" and num_hosts > 1:
            findings += graph_fitness.file_count_findings(graph, dataset, num_hosts=num_hosts)
    shared_by = num_replicas if batch == "global" else None
    findings += element_fitness.findings(dataset.element_spec, num_replicas=shared_by)
    return list(dict.fromkeys(findings))


def check_data(
    data: InputFunctions,
    split: str,
    *,
    global_batch_size: int,
    tpu: Tpu,
    num_replicas: int = 8,
    num_hosts: int = 1,
    objective: Objective | None = None,
    training: bool | None = None,
    order: Order = "hosts",
    start_step: SupportsIndex = 0,
) -> list[Finding]:
    """Builds the first host's input as a trainer would, on this machine, and looks at it.

    Arguments as in `check` and `Data.input_fn`. What the reader refuses becomes a finding too.

    Raises: ReaderError for arguments that make no sense.
    """
    _check_arguments(tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch="per_replica")
    place = f"{data.root}, split {split!r}"
    context = tf.distribute.InputContext(
        num_input_pipelines=num_hosts, input_pipeline_id=0, num_replicas_in_sync=num_replicas
    )
    try:
        fn = data.input_fn(
            split,
            global_batch_size=global_batch_size,
            objective=objective,
            training=training,
            order=order,
            start_step=start_step,
        )
        dataset = fn(context)
    except PrepError as error:
        return [Finding(kind="input", place=place, problem=error.cause, remedy=error.remedy, fatal=True)]
    findings = check(dataset, tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch="per_replica")
    return findings + _shard_findings(data.fewest_shards(split), num_hosts=num_hosts, place=place)


def describe(findings: Iterable[Finding]) -> str:
    """Format findings for people: a line for each, fatal ones first, and what to do about it below."""
    ordered = sorted(findings, key=lambda finding: not finding.fatal)
    if not ordered:
        return "ok   nothing in the input is bound to this machine, and every shape is static"
    lines = []
    for finding in ordered:
        lines.append(f"{'BAD ' if finding.fatal else 'warn'} {finding.place}: {finding.problem}")
        lines += [f"       {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def require(findings: Iterable[Finding]) -> None:
    """Raises: ReaderError with the first fatal finding, if there is one."""
    fatal = [finding for finding in findings if finding.fatal]
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        cause = f"the input cannot run on this TPU{more}: {fatal[0].place}: {fatal[0].problem}"
        raise ReaderError(cause, remedy=fatal[0].remedy)


def _check_arguments(*, tpu: str, num_replicas: int, num_hosts: int, batch: str) -> None:
    for name, value, choices in (("tpu", tpu, get_args(Tpu)), ("batch", batch, get_args(Batch))):
        if value not in choices:
            raise ReaderError(f"{name} is {value!r}, expected one of {list(choices)}")
    input_plan.check_positive("num_replicas", num_replicas)
    input_plan.check_positive("num_hosts", num_hosts)
    if num_replicas % num_hosts:
        raise ReaderError(f"{num_replicas} replicas on {num_hosts} hosts, expected equally many on each host")


def _unwritable(error: graph_walk.UnwritableError) -> Finding:
    return Finding(
        kind="graph",
        place="dataset",
        problem=f"cannot be written as a graph, to be looked at or dealt out by a strategy: {error}",
        remedy="read files instead of data in memory; move an operation that is named there into a flat_map",
        fatal=True,
    )


def _shard_findings(num_shards: int, *, num_hosts: int, place: str) -> list[Finding]:
    if num_shards >= num_hosts:
        return []
    return [
        Finding(
            kind="shards",
            place=place,
            problem=f"fewer shards ({num_shards}) than hosts ({num_hosts}): each host reads all and drops most records",
            remedy="build the dataset with a smaller --shard-size",
            fatal=False,
        )
    ]
