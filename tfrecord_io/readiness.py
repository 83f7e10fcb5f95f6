"""Check whether a `tf.data` pipeline can feed a TPU.

    readiness.check(dataset, tpu="node")                                   any tf.data.Dataset
    readiness.check_data(data, "train", global_batch_size=1024, tpu="vm")  a trainer's input from a Data or Mixture
    readiness.require(findings)                                            an error if a finding is fatal

    tpu="node"   the TPU's host is another machine, which gets only the graph, and reads only gs://
    tpu="vm"     this program runs on the TPU's hosts; files can be local, and on a single host Python works, slowly

No record is read.
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
from tfrecord_io.shown import some

__all__ = ["Batch", "Finding", "Tpu", "check", "check_data", "describe", "require"]

Tpu = Literal["node", "vm"]
Batch = Literal["global", "per_replica"]

_MOVE = "do this once, when the dataset is prepared (`prep-tfrecords build`), or use TensorFlow operations"
# Operations that work only in this process, by prefix: kind, problem and remedy.
_BOUND = {
    "GeneratorDataset": ("generator", "a generator runs only in the Python process that made it", _MOVE),
    "PyFunc": ("python", "calls a Python function of this process for each element", _MOVE),
    "EagerPyFunc": ("python", "calls a Python function of this process for each element", _MOVE),
    "LookupTable": ("table", "uses a lookup table in the memory of this process", _MOVE),
    "Iterator": ("iterator", "uses an iterator of this process", "zip the two datasets: tf.data.Dataset.zip"),
    "VarHandleOp": (
        "variable",
        "uses a tf.Variable or tf.random.Generator in the memory of this process",
        "use a constant; for random numbers, use stateless functions such as tf.random.stateless_uniform",
    ),
}
_MANY_BYTES = 16 * 1024 * 1024
_FILES = re.compile(
    r"(TFRecord|TextLine|FixedLengthRecord|CSV|Cache|Snapshot|Save|Load|MatchingFiles)Dataset(V2)?$"
    r"|ReadFile$|WriteFile$|MatchingFiles$"
)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://\S+\Z")
_FUNCTION = re.compile(r"^__inference_(?:Dataset_)?|_\d+$")
# Types from kTpuAllTypes in tensorflow/core/tpu/tpu_defs.h that an element can have.
_DTYPES = {
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
}
# kTpuAllTypes has these too, but the chips have 32-bit registers.
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem of a pipeline. `place`: the operation, path or component; not `fatal`: the input works, but slower."""

    kind: str
    place: str
    problem: str
    remedy: str
    fatal: bool = dataclasses.field(default=True, kw_only=True)


def check(
    dataset: tf.data.Dataset, *, tpu: Tpu, num_replicas: int = 8, num_hosts: int = 1, batch: Batch = "global"
) -> list[Finding]:
    """Return everything that prevents `dataset` from feeding a TPU, or makes it slow.

    Args:
        tpu: "vm" if this program runs on the TPU's hosts, otherwise "node".
        num_replicas: number of cores that train together, 8 on v2-8.
        num_hosts: number of machines with these cores.
        batch: "global" if the strategy divides an element (Keras fit, experimental_distribute_dataset), "per_replica"
            if an element is one replica's part (distribute_datasets_from_function).

    Raises: ReaderError for invalid arguments, or if called while a graph is built.
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
    """Build the first host's input on this machine, as a trainer would, and check it. An error becomes a finding.

    Arguments are as in `check` and `Data.input_fn`. Raises: as `check`.
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
    """Return findings as lines of text, fatal ones first, each with its remedy."""
    ordered = sorted(findings, key=lambda finding: not finding.fatal)
    if not ordered:
        return "ok   the input does not depend on this machine, and every shape is static"
    lines = []
    for finding in ordered:
        lines.append(f"{'BAD ' if finding.fatal else 'warn'} {finding.place}: {finding.problem}")
        lines += [f"       {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def require(findings: Iterable[Finding]) -> None:
    """Raise ReaderError for the first fatal finding, if any."""
    if fatal := [finding for finding in findings if finding.fatal]:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        cause = f"the input cannot feed this TPU{more}: {fatal[0].place}: {fatal[0].problem}"
        raise ReaderError(cause, remedy=fatal[0].remedy)


def _check_arguments(*, tpu: str, num_replicas: int, num_hosts: int, batch: str) -> None:
    for name, value, choices in (("tpu", tpu, get_args(Tpu)), ("batch", batch, get_args(Batch))):
        if value not in choices:
            raise ReaderError(f"{name} is {value!r}, expected one of {list(choices)}")
    host_plan.check_positive("num_replicas", num_replicas)
    host_plan.check_positive("num_hosts", num_hosts)
    host_plan.check_hosts(num_replicas, num_hosts)


def _graph_findings(dataset: tf.data.Dataset, *, remote: bool, gs_only: bool) -> Iterator[Finding]:
    if not tf.executing_eagerly():
        raise ReaderError(
            "the dataset is checked while a graph is built, expected eager execution",
            remedy="call the check outside of tf.function and tf.Graph",
        )
    try:
        variant = tf.data.experimental.to_variant(dataset)
        ignoring = tf.data.experimental.ExternalStatePolicy.IGNORE.value
        with tf.device(variant.device):  # a dataset cannot be copied to another machine
            serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignoring)
    except tf.errors.OpError as error:
        yield Finding(
            "graph",
            "dataset",
            f"cannot be serialized as a graph, which this check and a strategy need: {error.message}",
            "read files instead of data in memory; move the operation that the message names into a flat_map",
        )
        return
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    nodes = [("", node) for node in graph.node]
    for function in graph.library.function:
        nodes += [(function.signature.name, node) for node in function.node_def]
    yield from _bound_findings(nodes, remote=remote)
    constants = [node.attr["value"].tensor for _, node in nodes if node.op == "Const"]
    num_bytes = sum(constant.ByteSize() for constant in constants)
    # TensorFlow writes no graph larger than a protocol buffer.
    if not graph.node or num_bytes > _MANY_BYTES:
        size = f"{num_bytes / 1e6:.0f} MB" if graph.node else "2 GB or more"
        yield Finding(
            "data in the graph",
            "dataset",
            f"the graph, which is sent to every host, contains {size} of data",
            "write the data to TFRecord files (`prep-tfrecords build`); a graph of 2 GB cannot be sent at all",
            fatal=not graph.node,
        )
    if remote and any(_FILES.search(node.op) for _, node in nodes):
        yield from _path_findings(constants, gs_only=gs_only)


def _bound_findings(nodes: Iterable[tuple[str, Any]], *, remote: bool) -> Iterator[Finding]:
    findings: dict[str, Finding] = {}
    for scope, node in nodes:
        for name, (kind, problem, remedy) in _BOUND.items():
            if node.op.startswith(name) and kind not in findings:
                place = f"{node.op} in {_FUNCTION.sub('', scope)}" if scope else node.op
                findings[kind] = Finding(kind, place, problem, remedy, fatal=remote)
    if "generator" in findings:  # the Python functions belong to the generator
        findings.pop("python", None)
    yield from findings.values()


def _path_findings(constants: Iterable[Any], *, gs_only: bool) -> Iterator[Finding]:
    texts: dict[str, None] = {}
    for constant in constants:
        if constant.dtype == tf.string.as_datatype_enum:
            # `tf.make_ndarray` cannot read the compact form of strings.
            values = tf.reshape(tf.io.parse_tensor(constant.SerializeToString(), tf.string), [-1]).numpy().tolist()
            texts |= dict.fromkeys(value.decode(errors="replace") for value in values)
    paths = [text for text in texts if _is_out_of_reach(text, gs_only=gs_only)]
    if not paths:
        return
    problem, remedy = "the graph reads a local path, which each host opens on its own disk", "copy it to every host"
    if gs_only:
        problem = "the graph reads files outside of gs://, but a TPU Node reads only gs://"
        remedy = "copy the dataset to a bucket (gcloud storage cp -r DATASET gs://BUCKET/), and open it there"
    place = paths[0] + (f" ({len(paths)} in all)" if len(paths) > 1 else "")
    yield Finding("path", place, problem, remedy, fatal=gs_only)


def _is_out_of_reach(text: str, *, gs_only: bool) -> bool:
    if address := _ADDRESS.match(text):
        return address[1] == "file" or (gs_only and address[1] != "gs")
    if "\0" in text or not any(sign in text for sign in "/."):  # such as a feature's name
        return False
    is_pattern = os.path.isabs(text) and any(sign in text for sign in "*?[") and os.path.isdir(os.path.dirname(text))
    return is_pattern or os.path.lexists(text)


def _components(spec: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(spec, (Mapping, tuple, list)):
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        for name, inner in items:
            yield from _components(inner, f"{place}[{name!r}]")
    else:
        yield f"component {place}" if place else "element", spec


def _component_findings(place: str, spec: Any, *, sharing: int) -> Iterator[Finding]:
    if isinstance(spec, tf.NoneTensorSpec):
        return
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
        actual = f"has shape {spec.shape}" if isinstance(spec, tf.TensorSpec) else f"is a {type(spec).__name__}"
        yield Finding(
            "shape",
            place,
            f"{actual}, expected a tensor with a fixed size in every dimension",
            "drop incomplete batches: batch(…, drop_remainder=True); pad to one length: "
            "padded_batch(…, padded_shapes=[…]); restore a shape that a function loses: tf.ensure_shape(x, […])",
        )
    dtype = getattr(spec, "dtype", tf.int32)
    if dtype.name in _WIDE:
        problem = f"is {dtype.name}, which a TPU emulates, and which takes twice the bytes to transfer"
        yield Finding("dtype", place, problem, f"tf.cast(x, tf.{_WIDE[dtype.name]})", fatal=False)
    elif dtype.name not in _DTYPES:
        remedy = "leave it out, or tf.cast it to int32, float32, bfloat16 or bool"
        if dtype == tf.string:
            remedy = "tokenize text when the dataset is prepared (`prep-tfrecords build`)"
        yield Finding("dtype", place, f"is {dtype.name}, which a TPU does not support", remedy)
    if sharing > 1 and isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
        rows = spec.shape[0] if spec.shape.rank else 0
        if rows is not None and (rows == 0 or rows % sharing):
            problem = f"has {some(rows, 'row')}, expected a multiple of the {sharing} replicas"
            yield Finding("batch", place, problem, f"use batches of {-(-max(rows, 1) // sharing) * sharing} rows")
