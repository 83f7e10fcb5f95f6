"""The graph of any `tf.data.Dataset`, as something to walk through: its own nodes, and those of all its functions.

    paths ─► TensorSliceDataset ─► InterleaveDataset ─► MapDataset            the dataset's own nodes
    Const                            │ f                   │ f
                              args_0 ─► TFRecordDataset    args_0 ─► ParseExampleV2      nodes of functions

Going upstream from a node follows its inputs; from a function's argument on, those of the nodes that call the function;
and into the results of the functions that a node calls. So it comes to whatever can have to do with a value, and
sometimes to more: which component of an element a value is, is not looked at.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrecord_io.errors import ReaderError

__all__ = ["Graph", "Node", "UnwritableError", "graph_of", "strings"]

_FUNCTION = re.compile(r"^__inference_(?:Dataset_)?|_\d+$")
# Of these, the inputs behind the first are what the function has captured: its last arguments, one for one.
_CAPTURING = "Targuments"
_CAPTURED_AFTER = 1


class UnwritableError(Exception):
    """TensorFlow cannot write a dataset as a graph, and says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """An operation in function `scope`; in the dataset's own graph where that is empty. Inputs without control."""

    scope: str
    name: str
    op: str
    inputs: tuple[str, ...]
    attr: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """A dataset's nodes by scope and name, and by function its arguments and the values that it returns."""

    scopes: Mapping[str, Mapping[str, Node]]
    arguments: Mapping[str, tuple[str, ...]]
    returned: Mapping[str, tuple[str, ...]]

    def __iter__(self) -> Iterator[Node]:
        for nodes in self.scopes.values():
            yield from nodes.values()

    def calls(self, node: Node) -> list[str]:
        """The functions that a node calls, or hands on."""
        named = [value.func.name for value in node.attr.values() if value.HasField("func")]
        listed = [each.name for value in node.attr.values() for each in value.list.func]
        return [name for name in (*named, *listed, node.op) if name in self.returned]

    def source(self, node: Node, index: int) -> Node | None:
        """The node that gives the input; None where an argument of the function does."""
        return self.scopes[node.scope].get(_base(node.inputs[index]))

    def consumers(self, node: Node) -> list[Node]:
        """Nodes of the same scope that take what this one gives."""
        others = self.scopes[node.scope].values()
        return [other for other in others if node.name in map(_base, other.inputs)]

    def place(self, node: Node) -> str:
        """The operation, and in which transformation's function it is."""
        scope, callers = node.scope, self._callers
        while callers[scope] and callers[scope][0].scope:
            scope = callers[scope][0].scope
        if not callers[scope]:
            return node.op
        return f"{node.op} in {callers[scope][0].op} ({_FUNCTION.sub('', scope)})"

    def upstream(self, node: Node, index: int) -> list[Node]:
        """Every node that an input's value may depend on."""
        found: dict[Node, None] = {}
        seen: set[tuple[str, str]] = set()
        waiting = [(node.scope, _base(node.inputs[index]))]
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            scope, name = value
            giver = self.scopes[scope].get(name)
            if giver is None:
                waiting += self._given(scope, name)
                continue
            found[giver] = None
            waiting += [(scope, _base(each)) for each in giver.inputs]
            waiting += [(called, _base(each)) for called in self.calls(giver) for each in self.returned[called]]
        return list(found)

    def _given(self, function: str, argument: str) -> list[tuple[str, str]]:
        """What the function's callers give it as the argument."""
        arguments = self.arguments[function]
        given = []
        for caller in self._callers[function]:
            inputs = caller.inputs
            if _CAPTURING in caller.attr and "Tstate" not in caller.attr:
                captured = len(caller.attr[_CAPTURING].list.type)
                behind = arguments.index(argument) - (len(arguments) - captured)
                first = _CAPTURED_AFTER + behind
                inputs = inputs[first : first + 1] if behind >= 0 else inputs[:_CAPTURED_AFTER]
            given += [(caller.scope, _base(each)) for each in inputs]
        return given

    @functools.cached_property
    def _callers(self) -> Mapping[str, list[Node]]:
        callers: dict[str, list[Node]] = collections.defaultdict(list)
        for node in self:
            for function in self.calls(node):
                callers[function].append(node)
        return callers


def graph_of(dataset: tf.data.Dataset) -> Graph:
    """The graph as it would be sent to another machine.

    Raises: UnwritableError, and ReaderError while a graph is built.
    """
    if not tf.executing_eagerly():
        raise ReaderError(
            "a dataset is to be looked at while a graph is built, expected eager execution",
            remedy="call this outside of tf.function and tf.Graph",
        )
    proto = tf.compat.v1.GraphDef.FromString(_serialized(tf.data.experimental.to_variant(dataset)))
    if not proto.node:
        # It only logs an error where a graph is larger than a protocol buffer can be.
        raise UnwritableError("it has 2 GB or more")
    functions = {function.signature.name: function for function in proto.library.function}
    return Graph(
        scopes={"": _nodes("", proto.node), **{name: _nodes(name, each.node_def) for name, each in functions.items()}},
        arguments={name: tuple(arg.name for arg in each.signature.input_arg) for name, each in functions.items()},
        returned={name: tuple(each.ret.values()) for name, each in functions.items()},
    )


def _serialized(variant: tf.Tensor) -> bytes:
    ignoring = tf.data.experimental.ExternalStatePolicy.IGNORE.value
    try:
        # Where it is: a dataset cannot be copied to another machine.
        with tf.device(variant.device):
            graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=ignoring)
    except tf.errors.OpError as error:
        raise UnwritableError(error.message) from error
    return bytes(graph.numpy())


def strings(node: Node) -> list[str]:
    """The values of a constant, [] unless it holds strings."""
    if node.op != "Const" or node.attr["dtype"].type != tf.string.as_datatype_enum:
        return []
    # TensorFlow's Python functions cannot read the compact form in which strings may be stored.
    values = tf.io.parse_tensor(node.attr["value"].tensor.SerializeToString(), tf.string)
    return [value.decode(errors="replace") for value in tf.reshape(values, [-1]).numpy().tolist()]


def _nodes(scope: str, protos: Any) -> dict[str, Node]:
    return {
        proto.name: Node(
            scope=scope,
            name=proto.name,
            op=proto.op,
            inputs=tuple(each for each in proto.input if not each.startswith("^")),
            attr=proto.attr,
        )
        for proto in protos
    }


def _base(value: str) -> str:
    """The node, or argument, of a value such as `node:output:0`."""
    return value.partition(":")[0]
