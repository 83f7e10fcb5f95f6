"""The order of features in a record, and the constant bytes in front of their values."""

from __future__ import annotations

from tfrecord_io.schema import Feature, Schema

__all__ = ["LIST_TAGS", "in_order", "key"]

# Tag of the list of values, by the dtype of a feature.
LIST_TAGS = {"int64": 0x1A, "float32": 0x12, "string": 0x0A, "bytes": 0x0A}


def in_order(schema: Schema) -> list[Feature]:
    """Features as they follow each other in a record: by the bytes of their names, but `text_pair` before `text`.

    Protobuf's runtime for Python (upb) puts a name after the longer names that begin with it. The runtime for C++ has
    it the other way round; Example leaves the order open, and every reader takes both.
    """
    return sorted(schema.features, key=lambda feature: feature.name.encode() + b"\xff")


def key(feature: Feature) -> bytes:
    """The constant bytes of an entry: the key with its tag and size, and the tag of the value."""
    name = feature.name.encode()
    size = [len(name)] if len(name) < 0x80 else [len(name) & 0x7F | 0x80, len(name) >> 7]  # names have up to 128 bytes
    return bytes([0x0A, *size]) + name + b"\x12"
