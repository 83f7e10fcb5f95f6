"""Checks whether each component of an element is fit for a TPU: a static shape, a dtype that the chip has, rows for
every replica.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfrecord_io.tpu_fitness.findings import Finding

__all__ = ["findings"]

# Of kTpuAllTypes in tensorflow/core/tpu/tpu_defs.h, those that can be an element's.
_DTYPES = {
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
}
# Also of these, but chips have registers of 32 bits.
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32"}


def findings(element_spec: Any, *, num_replicas: int | None) -> list[Finding]:
    """`num_replicas` are to share the element's rows; None if they need not."""
    components = list(_components(element_spec))
    found = [finding for place, spec in components for finding in _component_findings(place, spec)]
    if num_replicas is not None:
        found += _batch_findings(components, num_replicas=num_replicas)
    return found


def _components(spec: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a structure, by where they are in it: `[0]['input_ids']`."""
    if isinstance(spec, Mapping):
        for name, each in spec.items():
            yield from _components(each, f"{place}[{name!r}]")
    elif isinstance(spec, (tuple, list)):
        for index, each in enumerate(spec):
            yield from _components(each, f"{place}[{index}]")
    else:
        yield f"component {place}" if place else "element", spec


def _component_findings(place: str, spec: Any) -> Iterator[Finding]:
    if isinstance(spec, tf.NoneTensorSpec):
        return
    if not isinstance(spec, tf.TensorSpec):
        yield Finding(
            kind="shape",
            place=place,
            problem=f"is a {type(spec).__name__.removesuffix('Spec')}, expected a tensor of one shape",
            remedy="make it dense, with a shape that is known: to_tensor(shape=…), or padded_batch with padded_shapes",
            fatal=True,
        )
        return
    if not spec.shape.is_fully_defined():
        yield Finding(
            kind="shape",
            place=place,
            problem=f"has shape {spec.shape}, expected a number in every dimension",
            remedy=_shape_remedy(spec.shape),
            fatal=True,
        )
    yield from _dtype_findings(place, spec.dtype)


def _shape_remedy(shape: tf.TensorShape) -> str:
    if shape.rank is None:
        return "state it, after the function that loses it: tf.ensure_shape(x, […])"
    if all(shape[1:]) and shape.rank > 0:
        return "leave out what does not fill a batch: batch(…, drop_remainder=True)"
    return "pad to one length: padded_batch(…, padded_shapes=[…], drop_remainder=True), or tf.ensure_shape(x, […])"


def _dtype_findings(place: str, dtype: tf.DType) -> Iterator[Finding]:
    if dtype.name in _WIDE:
        narrow = _WIDE[dtype.name]
        yield Finding(
            kind="dtype",
            place=place,
            problem=f"is {dtype.name}, which a TPU has to emulate, and twice the bytes on the way there",
            remedy=f"tf.cast(x, tf.{narrow})",
            fatal=False,
        )
    elif dtype.name not in _DTYPES:
        yield Finding(
            kind="dtype",
            place=place,
            problem=f"is {dtype.name}, which a TPU does not take",
            remedy="tokenize text when the dataset is prepared (`prep-tfrecords build`)"
            if dtype == tf.string
            else "leave it out, or tf.cast it to int32, float32, bfloat16 or bool",
            fatal=True,
        )


def _batch_findings(components: list[tuple[str, Any]], *, num_replicas: int) -> Iterator[Finding]:
    places: dict[int | None, list[str]] = collections.defaultdict(list)
    for place, spec in components:
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None:
            places[spec.shape[0] if spec.shape.rank else 0].append(place)
    for rows, those in places.items():
        if rows == 0:
            problem, remedy = "has no rows to share out among the replicas", "batch the dataset: batch(…)"
        elif rows is not None and rows % num_replicas:
            below = rows // num_replicas * num_replicas
            problem = f"has {rows} rows, expected a multiple of the {num_replicas} replicas"
            remedy = f"use batches of {f'{below} or ' if below else ''}{below + num_replicas}"
        elif rows is not None and len({each for each in places if each}) > 1:
            problem, remedy = f"has {rows} rows, other components have not", "batch all components together"
        else:
            continue
        more = f" (and {len(those) - 1} more)" if len(those) > 1 else ""
        yield Finding(kind="batch", place=those[0] + more, problem=problem, remedy=remedy, fatal=True)
