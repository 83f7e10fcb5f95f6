"""Check before a run whether a `tf.data` pipeline fits a TPU. Each finding has a place and a remedy.

    readiness.check(dataset, tpu="node")                                   any tf.data.Dataset
    readiness.check_data(data, "train", global_batch_size=1024, tpu="vm")  a trainer's input from a Data or Mixture
    readiness.require(findings)                                            an error if a finding is fatal

    tpu="node"   the TPU's host is another machine, which receives the graph and sees only Google Cloud Storage
    tpu="vm"     this program runs on the TPU's host, or on the first of several: files can be local, and with one host
                 Python works too, though the chips wait for it

The check examines the graph and the element_spec. It reads no record.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import tensorflow as tf

from tfrecord_io.errors import PrepError, ReaderError
from tfrecord_io.input_pipeline import host_plan
from tfrecord_io.input_pipeline.base import InputFunctions

__all__ = ["Batch", "Finding", "Tpu", "check", "check_data", "describe", "require"]

Tpu = Literal["node", "vm"]
Batch = Literal["global", "per_replica"]

_MOVE = "do this once, when the dataset is prepared (`prep-tfrecords build`), or write it in TensorFlow's operations"
# By prefix of operations bound to this process: kind, problem and remedy.
_BOUND = {
    "GeneratorDataset": ("generator", "a generator runs in the Python process that made it and nowhere else", _MOVE),
    "PyFunc": ("python", "calls a function of the Python process that made it, element by element", _MOVE),
    "EagerPyFunc": ("python", "calls a function of the Python process that made it, element by element", _MOVE),
    "LookupTable": ("table", "looks up in a table that is held in the memory of this process", _MOVE),
    "Iterator": ("iterator", "takes from an iterator of this process", "zip the two datasets: tf.data.Dataset.zip"),
    "VarHandleOp": (
        "variable",
        "uses a tf.Variable, or the state of a tf.random.Generator, in the memory of this process",
        "use a constant; for random numbers, tf.random.stateless_uniform and the like",
    ),
}
_MANY_BYTES = 16 * 1024 * 1024
# Operations that read or write files named in the graph.
_FILES = re.compile(
    r"(TFRecord|TextLine|FixedLengthRecord|CSV|Cache|Snapshot|Save|Load|MatchingFiles)Dataset(V2)?$"
    r"|ReadFile$|WriteFile$|MatchingFiles$"
)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://\S+\Z")
_FUNCTION = re.compile(r"^__inference_(?:Dataset_)?|_\d+$")
# The types of kTpuAllTypes in tensorflow/core/tpu/tpu_defs.h that an element can have.
_DTYPES = {
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
}
# Also there, but chips have 32-bit registers.
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """Problem of a pipeline at an operation, a path or a component. If not `fatal`, the input works but costs more."""

    kind: str
    place: str
    problem: str
    remedy: str
    fatal: bool = dataclasses.field(default=True, kw_only=True)


def check(
    dataset: tf.data.Dataset, *, tpu: Tpu, num_replicas: int = 8, num_hosts: int = 1, batch: Batch = "global"
) -> list[Finding]:
    """Find everything that prevents `dataset` from running on a TPU or slows it down there.

    Args:
        tpu: "node" or "vm", see above.
        num_replicas: cores that train together; 8 on v2-8 and v3-8.
        num_hosts: machines with these cores.
        batch: whether an element is a "global" batch, which the strategy divides (Keras fit,
            experimental_distribute_dataset), or one replica's part (distribute_datasets_from_function).

    Raises: ReaderError for invalid arguments, or during graph construction.
    """
    _check_arguments(tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch=batch)
    remote = tpu == "node" or num_hosts > 1
    findings = list(_graph_findings(dataset, remote=remote, gs_only=tpu == "node"))
    for place, spec in _components(dataset.element_spec):
        findings += _component_findings(place, spec, sharing=num_replicas if batch == "global" else 1)
    return list(dict.fromkeys(findings))


def check_data(
    data: InputFunctions,
    split: str,
    *,
    global_batch_size: int,
    tpu: Tpu,
    num_replicas: int = 8,
    num_hosts: int = 1,
    **options: Any,
) -> list[Finding]:
    """Build the first host's input like a trainer, on this machine, and check it.

    Arguments as in `check`, and all others as in `Data.input_fn`. The reader's errors become findings too.

    Raises: ReaderError for invalid arguments.
    """
    _check_arguments(tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch="per_replica")
    place = f"{data.root}, split {split!r}"
    context = tf.distribute.InputContext(
        num_input_pipelines=num_hosts, input_pipeline_id=0, num_replicas_in_sync=num_replicas
    )
    try:
        dataset = data.input_fn(split, global_batch_size=global_batch_size, **options)(context)
    except PrepError as error:
        return [Finding("input", place, error.cause, error.remedy)]
    return check(dataset, tpu=tpu, num_replicas=num_replicas, num_hosts=num_hosts, batch="per_replica")


def describe(findings: Iterable[Finding]) -> str:
    """Format findings for people: fatal ones first, each followed by its remedy."""
    ordered = sorted(findings, key=lambda finding: not finding.fatal)
    if not ordered:
        return "ok   nothing in the input is bound to this machine, and every shape is static"
    lines = []
    for finding in ordered:
        lines.append(f"{'BAD ' if finding.fatal else 'warn'} {finding.place}: {finding.problem}")
        lines += [f"       {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def require(findings: Iterable[Finding]) -> None:
    """Raise ReaderError with the first fatal finding, if any."""
    fatal = [finding for finding in findings if finding.fatal]
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        cause = f"the input cannot run on this TPU{more}: {fatal[0].place}: {fatal[0].problem}"
        raise ReaderError(cause, remedy=fatal[0].remedy)


def _check_arguments(*, tpu: str, num_replicas: int, num_hosts: int, batch: str) -> None:
    for name, value, choices in (("tpu", tpu, get_args(Tpu)), ("batch", batch, get_args(Batch))):
        if value not in choices:
            raise ReaderError(f"{name} is {value!r}, expected one of {list(choices)}")
    host_plan.check_positive("num_replicas", num_replicas)
    host_plan.check_positive("num_hosts", num_hosts)
    if num_replicas % num_hosts:
        raise ReaderError(f"{num_replicas} replicas on {num_hosts} hosts, expected equally many on each host")


def _graph_findings(dataset: tf.data.Dataset, *, remote: bool, gs_only: bool) -> Iterator[Finding]:
    if not tf.executing_eagerly():
        raise ReaderError(
            "a dataset is examined while a graph is built, expected eager execution",
            remedy="call this outside of tf.function and tf.Graph",
        )
    try:
        variant = tf.data.experimental.to_variant(dataset)
        ignoring = tf.data.experimental.ExternalStatePolicy.IGNORE.value
        with tf.device(variant.device):  # a dataset cannot be copied to another machine
            written = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignoring)
    except tf.errors.OpError as error:
        yield Finding(
            "graph",
            "dataset",
            f"cannot be written as a graph, to be looked at or dealt out by a strategy: {error.message}",
            "read files instead of data in memory; move an operation that is named there into a flat_map",
        )
        return
    graph = tf.compat.v1.GraphDef.FromString(written.numpy())
    scopes = [("", graph.node), *((each.signature.name, each.node_def) for each in graph.library.function)]
    nodes = [(scope, node) for scope, inside in scopes for node in inside]
    yield from _bound_findings(nodes, remote=remote)
    constants = [node.attr["value"].tensor for _, node in nodes if node.op == "Const"]
    num_bytes = sum(constant.ByteSize() for constant in constants)
    # TensorFlow writes no graph larger than a protocol buffer.
    if not graph.node or num_bytes > _MANY_BYTES:
        what = f"{num_bytes / 1e6:.0f} MB" if graph.node else "2 GB or more"
        yield Finding(
            "data in the graph",
            "dataset",
            f"{what} of data are part of the graph, which every host gets as a whole",
            "write the data to TFRecord files (`prep-tfrecords build`); a graph of 2 GB cannot be sent at all",
            fatal=not graph.node,
        )
    if remote and any(_FILES.search(node.op) for _, node in nodes):
        yield from _path_findings(constants, gs_only=gs_only)


def _bound_findings(nodes: Iterable[tuple[str, Any]], *, remote: bool) -> Iterator[Finding]:
    found: dict[str, Finding] = {}
    for scope, node in nodes:
        for name, (kind, problem, remedy) in _BOUND.items():
            if node.op.startswith(name) and kind not in found:
                place = f"{node.op} in {_FUNCTION.sub('', scope)}" if scope else node.op
                found[kind] = Finding(kind, place, problem, remedy, fatal=remote)
    if "generator" in found:  # the Python functions belong to the generator
        found.pop("python", None)
    yield from found.values()


def _path_findings(constants: Iterable[Any], *, gs_only: bool) -> Iterator[Finding]:
    """Find files that hosts cannot reach: a TPU Node reads only gs://, other hosts have separate disks."""
    texts: dict[str, None] = {}
    for each in constants:
        if each.dtype == tf.string.as_datatype_enum:
            # TensorFlow's Python functions cannot read strings' compact form.
            values = tf.reshape(tf.io.parse_tensor(each.SerializeToString(), tf.string), [-1]).numpy().tolist()
            texts |= dict.fromkeys(value.decode(errors="replace") for value in values)
    paths = [text for text in texts if _is_out_of_reach(text, gs_only=gs_only)]
    if not paths:
        return
    problem, remedy = "a local path, which each host looks for on its own disk", "see that it is on all of them"
    if gs_only:
        problem = "not on gs://, which is all that a TPU Node reads"
        remedy = "copy the dataset to a bucket (gcloud storage cp -r DATASET gs://BUCKET/), and open it there"
    place = paths[0] + (f" ({len(paths)} in all)" if len(paths) > 1 else "")
    yield Finding("path", place, f"the graph reads files {problem}", remedy, fatal=gs_only)


def _is_out_of_reach(text: str, *, gs_only: bool) -> bool:
    if address := _ADDRESS.match(text):
        return address[1] == "file" or (gs_only and address[1] != "gs")
    if "\0" in text or not any(each in text for each in "/."):  # such as a feature's name
        return False
    is_pattern = os.path.isabs(text) and any(each in text for each in "*?[") and os.path.isdir(os.path.dirname(text))
    return is_pattern or os.path.lexists(text)


def _components(spec: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield leaves with their position, such as `[0]['input_ids']`."""
    if isinstance(spec, (Mapping, tuple, list)):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for name, each in items:
            yield from _components(each, f"{place}[{name!r}]")
    else:
        yield f"component {place}" if place else "element", spec


def _component_findings(place: str, spec: Any, *, sharing: int) -> Iterator[Finding]:
    if isinstance(spec, tf.NoneTensorSpec):
        return
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
        what = f"has shape {spec.shape}" if isinstance(spec, tf.TensorSpec) else f"is a {type(spec).__name__}"
        yield Finding(
            "shape",
            place,
            f"{what}, expected a tensor with a number in every dimension",
            "drop incomplete batches: batch(…, drop_remainder=True); pad to one length: "
            "padded_batch(…, padded_shapes=[…]); state what a function loses: tf.ensure_shape(x, […])",
        )
    dtype = getattr(spec, "dtype", tf.int32)
    if dtype.name in _WIDE:
        problem = f"is {dtype.name}, which a TPU has to emulate, and twice the bytes on the way there"
        yield Finding("dtype", place, problem, f"tf.cast(x, tf.{_WIDE[dtype.name]})", fatal=False)
    elif dtype.name not in _DTYPES:
        remedy = "leave it out, or tf.cast it to int32, float32, bfloat16 or bool"
        if dtype == tf.string:
            remedy = "tokenize text when the dataset is prepared (`prep-tfrecords build`)"
        yield Finding("dtype", place, f"is {dtype.name}, which a TPU does not take", remedy)
    if sharing > 1 and isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        rows = spec.shape[0] if spec.shape.rank else 0
        if rows is not None and (rows == 0 or rows % sharing):
            problem = f"has {rows} rows, expected a multiple of the {sharing} replicas"
            yield Finding("batch", place, problem, f"use batches of {-(-max(rows, 1) // sharing) * sharing}")
