"""What is wrong with a record that the compiled loops refuse, in words. As strict as they are (`decoding_kernels`)."""

from __future__ import annotations

import numpy as np

from tfrecord_io.codec import example_layout
from tfrecord_io.schema import Feature, Schema

__all__ = ["in_record"]


class _DamageError(Exception):
    pass


def in_record(record: bytes, schema: Schema) -> str:
    """Return what the first damage of a serialized Example is, and at which byte; "" if there is none."""
    walk = _Walk(record)
    try:
        walk.take(b"\x0a", end=len(record), otherwise=f"no Example of {len(record)} bytes", exact=True)
        for feature in example_layout.in_order(schema):
            expected = f"expected feature {feature.name!r}, {feature.dtype}{list(feature.shape)}, found "
            if what := _in_values(walk.take_entry(feature, expected), feature):
                return expected + what
        if walk.position != len(record):
            raise walk.damage(f"expected the end, found {len(record) - walk.position} more bytes")
    except _DamageError as error:
        return str(error)
    return ""


class _Walk:
    """A walk through the tags and sizes of one record."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def damage(self, what: str) -> _DamageError:
        found = self._content[self.position : self.position + 16].hex(" ") or "the end"
        return _DamageError(f"byte {self.position}: {what} ({found})")

    def take(self, tag: bytes, *, end: int, otherwise: str, exact: bool) -> int:
        """Pass a tag and a size that reaches to `end`, or not beyond it. Returns: where it reaches."""
        if not self._content.startswith(tag, self.position):
            raise self.damage(otherwise)
        position, value, shift = self.position + len(tag), 0, 0
        for byte in self._content[position : min(position + 5, end)]:  # a size below 2^35
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                stop = position + value
                if (byte == 0 and shift > 7) or stop > end or (exact and stop < end):
                    break
                self.position = position
                return stop
        raise self.damage(otherwise)

    def take_entry(self, feature: Feature, expected: str) -> bytes:
        """Pass the entry of a feature. Returns: its packed values."""
        no_entry, sizes = expected + "another entry or none", expected + "sizes that do not fit into each other"
        key, tag = example_layout.key(feature), example_layout.LIST_TAGS[feature.dtype]
        entry = self.position
        stop = self.take(b"\x0a", end=len(self._content), otherwise=no_entry, exact=False)
        if not self._content.startswith(key, self.position):
            self.position = entry
            raise self.damage(no_entry)
        self.take(key, end=stop, otherwise=sizes, exact=True)
        if self.position < stop and self._content[self.position] != tag:
            raise self.damage(expected + "a list of another kind")
        self.take(bytes([tag]), end=stop, otherwise=sizes, exact=True)
        self.take(b"\x0a", end=stop, otherwise=sizes, exact=True)
        start, self.position = self.position, stop
        return self._content[start:stop]


def _in_values(packed: bytes, feature: Feature) -> str:
    if feature.is_bytes:
        return ""
    if feature.dtype == "float32":
        return "" if len(packed) == 4 * feature.num_values else f"{len(packed) // 4} values"
    last = np.frombuffer(packed, np.uint8) < 0x80
    ends = np.flatnonzero(last)
    if len(ends) != feature.num_values:
        return f"{len(ends)} values"
    widths = np.diff(ends, prepend=-1)
    tops = np.frombuffer(packed, np.uint8)[ends]
    wrong = ((tops == 0) & (widths > 1)) | (widths > 10) | ((widths == 10) & (tops > 1))
    return "a value that is not a minimal varint of 64 bits" if wrong.any() or not last[-1] else ""
