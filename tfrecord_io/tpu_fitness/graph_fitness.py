"""Can a dataset's graph run on a TPU's host? What in it is bound to this process, its files, or is too much to send."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import tensorflow as tf

from tfrecord_io.tpu_fitness import graph_walk
from tfrecord_io.tpu_fitness.findings import Finding
from tfrecord_io.tpu_fitness.graph_walk import Graph, Node

__all__ = ["file_count_findings", "operation_findings", "path_findings", "size_findings"]

_MOVE = "do this once, when the dataset is prepared (`prep-tfrecords build`), or write it in TensorFlow's operations"
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_TABLES = ("LookupTableFind", "LookupTableSize", "LookupTableExport")
_ITERATORS = ("Iterator", "AnonymousIterator", "OneShotIterator", "MultiDeviceIterator", "AnonymousMultiDeviceIterator")
# The input that names files, of each operation that reads or writes some.
_FILES = {
    "CSVDataset": 0,
    "CSVDatasetV2": 0,
    "CacheDataset": 1,
    "CacheDatasetV2": 1,
    "FixedLengthRecordDataset": 0,
    "FixedLengthRecordDatasetV2": 0,
    "InitializeTableFromTextFile": 1,
    "InitializeTableFromTextFileV2": 1,
    "LMDBDataset": 0,
    "LoadDataset": 0,
    "MatchingFiles": 0,
    "MatchingFilesDataset": 0,
    "ReadFile": 0,
    "SaveDataset": 1,
    "SaveDatasetV2": 1,
    "SnapshotDataset": 1,
    "SnapshotDatasetV2": 1,
    "SqlDataset": 1,
    "TFRecordDataset": 0,
    "TFRecordDatasetV2": 0,
    "TextLineDataset": 0,
    "WriteFile": 0,
}
_MANY_BYTES = 16 * 1024 * 1024


def operation_findings(graph: Graph, *, remote: bool) -> Iterator[Finding]:
    """What is bound to this process, which is fatal if the pipeline is to run in another (`remote`)."""
    generators = [node for node in graph if node.op == "GeneratorDataset"]
    # The Python in there is that of the generator, and is told of once.
    generating = {function for node in generators for function in graph.calls(node)}
    found = False
    for node in graph:
        problem = None if node.scope in generating else _bound(node, graph, remote=remote)
        if problem is not None:
            kind, what, remedy = problem
            found |= kind in ("table", "iterator", "variable")
            place = _user(node, graph) if kind == "variable" else graph.place(node)
            yield Finding(kind=kind, place=place, problem=what, remedy=remedy, fatal=remote)
    resources = [node for node in graph.scopes[""].values() if _is_constant(node, tf.resource)]
    if resources and not found:
        what = "uses something that is held in the memory of this process"
        yield Finding(kind="resource", place=_user(resources[0], graph), problem=what, remedy=_MOVE, fatal=remote)


def _bound(node: Node, graph: Graph, *, remote: bool) -> tuple[str, str, str] | None:
    """Kind, problem and remedy."""
    op = node.op
    if op == "GeneratorDataset":
        return "generator", "a generator runs in the Python process that made it and nowhere else", _MOVE
    if op in _PYTHON:
        return "python", "calls a function of the Python process that made it, element by element", _MOVE
    if op.startswith(_TABLES):
        return "table", "looks up in a table that is held in the memory of this process", _MOVE
    if op.startswith(_ITERATORS):
        return "iterator", "takes from an iterator of this process", "zip the two datasets: tf.data.Dataset.zip"
    if op == "VarHandleOp":
        what = "uses a tf.Variable, or the state of a tf.random.Generator, in the memory of this process"
        return "variable", what, "use a constant; for random numbers, tf.random.stateless_uniform and the like"
    if remote and not op.startswith(("_", "Xla")) and op not in graph.returned and not hasattr(tf.raw_ops, op):
        return "custom", "comes from a library of its own, and the TPU's host has only TensorFlow itself", _MOVE
    return None


def size_findings(graph: Graph) -> Iterator[Finding]:
    """Data that travels with the graph, to every host."""
    sizes = {node: node.attr["value"].tensor.ByteSize() for node in graph if node.op == "Const"}
    total = sum(sizes.values())
    if total > _MANY_BYTES:
        largest = max(sizes, key=lambda node: sizes[node])
        yield Finding(
            kind="data in the graph",
            place=_user(largest, graph),
            problem=f"{total / 1e6:.0f} MB of data are part of the graph, which every host gets as a whole",
            remedy="write the data to TFRecord files (`prep-tfrecords build`); a graph of 2 GB cannot be sent at all",
            fatal=False,
        )


def path_findings(graph: Graph, *, gs_only: bool) -> Iterator[Finding]:
    """Local files. A TPU Node reads from gs:// alone (`gs_only`); other hosts have disks of their own."""
    for node in graph:
        paths = [path for path in _paths(node, graph) if _is_out_of_reach(path, gs_only=gs_only)]
        if not paths:
            continue
        more = f" ({len(paths)} in all)" if len(paths) > 1 else ""
        if gs_only:
            problem = f"{graph.place(node)} is given a path that is not on gs://, which is all that a TPU Node reads"
            remedy = "copy the dataset to a bucket (gcloud storage cp -r DATASET gs://BUCKET/), and open it there"
        else:
            problem = f"{graph.place(node)} is given a local path, which each host looks for on its own disk"
            remedy = "see that it is on all of them, or copy the dataset to a bucket"
        yield Finding(kind="path", place=paths[0] + more, problem=problem, remedy=remedy, fatal=gs_only)


def file_count_findings(graph: Graph, dataset: tf.data.Dataset, *, num_hosts: int) -> Iterator[Finding]:
    """A strategy deals out whole files to hosts, unless it is told not to."""
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    readers = [node for node in graph if node.op in _FILES and node.op.endswith(("Dataset", "DatasetV2"))]
    paths = {path for node in readers for path in _paths(node, graph)}
    is_dealt = policy in (policies.AUTO, policies.FILE) and not any(map(_is_pattern, paths))
    if is_dealt and 0 < len(paths) < num_hosts:
        yield Finding(
            kind="shards",
            place=min(paths),
            problem=f"{len(paths)} files for {num_hosts} hosts, which auto_shard_policy {policy.name} deals out",
            remedy="write more files, or set options.experimental_distribute.auto_shard_policy to DATA: every host "
            "then reads all of them and drops what it is not to have",
            fatal=policy == policies.FILE,
        )


def _paths(node: Node, graph: Graph) -> list[str]:
    """The paths that the graph gives to an operation on files."""
    if node.op not in _FILES:
        return []
    index = _FILES[node.op]
    given = graph.source(node, index)
    found = [(text, each == given) for each in graph.upstream(node, index) for text in graph_walk.strings(each)]
    return list(dict.fromkeys(text for text, is_direct in found if text and (is_direct or _is_path(text))))


def _is_path(text: str) -> bool:
    """Whether a string that a path may be made from is one by itself: a part of a name is not."""
    return _has_scheme(text) or os.path.isabs(text) or ("\0" not in text and os.path.lexists(text))


def _is_out_of_reach(path: str, *, gs_only: bool) -> bool:
    if path.startswith("gs://"):
        return False
    return gs_only or not _has_scheme(path) or path.startswith("file://")


def _user(node: Node, graph: Graph) -> str:
    """The transformation that a node is for."""
    near = graph.consumers(node)
    users = [*near, *(each for other in near if other.op == "Identity" for each in graph.consumers(other))]
    return graph.place(next((user for user in users if "Dataset" in user.op), node))


def _has_scheme(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.\-]*://", text) is not None


def _is_pattern(path: str) -> bool:
    return any(character in path for character in "*?[")


def _is_constant(node: Node, dtype: tf.DType) -> bool:
    return node.op == "Const" and node.attr["dtype"].type == dtype.as_datatype_enum
