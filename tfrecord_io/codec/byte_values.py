"""Values of features of text and bytes: objects in arrays, bytes in records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tfrecord_io.errors import SchemaError
from tfrecord_io.schema import MOST_VALUE_BYTES, Feature

__all__ = ["Pieces", "objects", "pieces"]


class Pieces(NamedTuple):
    """N values as bytes: their sizes int64 [N], and uint8 one behind the other."""

    sizes_N: np.ndarray
    data: np.ndarray


def pieces(column: np.ndarray, feature: Feature) -> Pieces:
    """Return the bytes of a column of objects. Raises: SchemaError for another type, and a value that is too long."""
    held = str if feature.dtype == "string" else bytes
    if not all(type(value) is held for value in column):
        raise SchemaError(f"column {feature.name!r}: objects of other types, expected {held.__name__}")
    try:
        values = [value.encode("utf-8", "surrogateescape") for value in column] if held is str else column.tolist()
    except UnicodeEncodeError as error:
        raise SchemaError(f"column {feature.name!r}: a lone surrogate, expected Unicode text") from error
    sizes_N = np.fromiter(map(len, values), np.int64, len(values))
    if sizes_N.max(initial=0) > MOST_VALUE_BYTES:
        raise SchemaError(
            f"column {feature.name!r}: a value of {sizes_N.max():,} bytes, expected at most {MOST_VALUE_BYTES:,}"
        )
    return Pieces(sizes_N, np.frombuffer(b"".join(values), np.uint8))


def objects(data: np.ndarray, spans_N2: np.ndarray, feature: Feature) -> np.ndarray:
    """Return the values at [start, end) of the data, str or bytes [N]. Bytes that are no UTF-8 become surrogates."""
    view, values = data.data, np.empty(len(spans_N2), object)
    is_text = feature.dtype == "string"
    for at, (start, end) in enumerate(spans_N2.tolist()):
        values[at] = str(view[start:end], "utf-8", "surrogateescape") if is_text else bytes(view[start:end])
    return values
