"""The rules of XLA, and where in the code a model breaks one.

    Python decides on a tensor's value        TensorFlow fails while it traces; the place is in the traceback
    a shape depends on the data               the graph has an operation of `_DATA_SHAPED`; it remembers its place
    a shape changes from step to step         the input's element has a dimension without a number
    an operation that XLA does not have       TensorFlow fails while it translates; its message names the operation

A place is the last frame of a stack that belongs neither to TensorFlow nor to Keras: the model's own code.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipelines.train.preflight.errors import StepError
from tfrecord_io.tpu_fitness import element_fitness

__all__ = ["check_graph", "check_spec", "explain"]

# The number of rows that come out depends on the values that go in.
_DATA_SHAPED = frozenset(
    (
        *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "DynamicPartition", "ListDiff"),
        *("NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5"),
        *("DenseToDenseSetOperation", "SparseFillEmptyRows", "RaggedTensorToSparse"),
    )
)
_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (tf, keras))
_OWN = str(Path(__file__).parents[1])
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_DECIDES = ("Python `bool`", "not 'SymbolicTensor'", "SymbolicTensor' object cannot be interpreted", "KerasTensor")
_WEIGH = (
    "keep every row and let a mask say which count: tf.where(mask, values, 0) with three arguments, or weights of 0"
)


def check_spec(element_spec: Any) -> None:
    """Raises: StepError if a batch's shape is not the same at every step, which would compile again for each."""
    fatal = [found for found in element_fitness.findings(element_spec, num_replicas=None) if found.fatal]
    if fatal:
        raise StepError(
            f"the input's shape is not static: {fatal[0].place} {fatal[0].problem}; XLA compiles anew for every shape",
            remedy=fatal[0].remedy,
        )


def check_graph(graph: Any) -> None:
    """Raises: StepError for the first operation whose output's shape depends on the data."""
    for op in _operations(graph):
        if op.type in _DATA_SHAPED:
            shapes = ", ".join(str(output.shape) for output in op.outputs)
            raise StepError(
                f"operation {op.type} ({_plain(op.name)}) at {_place(op.traceback)} gives a shape that depends on the "
                f"data, {shapes}; XLA needs every shape before it sees the data",
                remedy=_WEIGH,
            )


def explain(error: BaseException, *, graph: Any | None) -> StepError | None:
    """What an exception from tracing or translating means; None if it is of another kind.

    `graph` is the step's, where it was traced: it knows where each operation comes from.
    """
    for each in _chain(error):
        words = _COLOR.sub("", str(each))
        if node := _NODE.search(words):
            return _untranslatable(words, node=node[1], graph=graph)
        if isinstance(each, tf.errors.OperatorNotAllowedInGraphError) or any(sign in words for sign in _DECIDES):
            return StepError(
                f"{_place(traceback.extract_tb(each.__traceback__))}: Python decides on a tensor's value, which is not "
                f"known while the step is compiled ({_sentence(words)})",
                remedy="let the graph decide: tf.where(condition, a, b), keras.ops.where or tf.cond",
            )
    return None


def _untranslatable(words: str, *, node: str, graph: Any | None) -> StepError:
    name = _plain(node)
    found = [op for op in _operations(graph) if _plain(op.name) == name] if graph is not None else []
    kind, place = (found[0].type, f" at {_place(found[0].traceback)}") if found else ("", "")
    short = _sentence(words.partition("{{node")[0].removeprefix("Failed getting HLO text: '"))
    return StepError(
        f"XLA cannot compile operation {kind} ({name}){place}: {short}",
        remedy="use operations on numbers of static shape; text and Python belong into the preparation of the data",
    )


def _operations(graph: Any) -> Iterator[Any]:
    """All operations of a graph and of the functions that it calls, each once."""
    graphs, seen = [graph], set()
    while graphs:
        current = graphs.pop()
        for op in current.get_operations():
            yield op
            for name in _called(op.node_def):
                if name not in seen:
                    seen.add(name)
                    graphs.append(current._get_function(name).graph)


def _called(node: Any) -> Iterator[str]:
    for value in node.attr.values():
        for function in (value.func, *value.list.func):
            if function.name:
                yield function.name


def _place(frames: Iterable[Any]) -> str:
    """FILE:LINE of the model's own code; of what called it, where it has none."""
    known = [(str(Path(frame.filename)), frame.lineno) for frame in frames]
    outside = [each for each in known if not each[0].startswith(_LIBRARIES)]
    users = [each for each in outside if not each[0].startswith(_OWN)]
    chosen = users or outside or known
    return f"{chosen[-1][0]}:{chosen[-1][1]}" if chosen else "a place that was not kept"


def _plain(name: str) -> str:
    """A name without the calls around it."""
    return re.sub(r"^((Stateful)?PartitionedCall(_\d+)?/)+", "", name)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the first cause last."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _sentence(words: str) -> str:
    """The first sentence that says something, short."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    chosen = next((line for line in lines if "symbolic" in line.lower() or "op" in line.lower()), words)
    return " ".join(chosen.split())[:240]
