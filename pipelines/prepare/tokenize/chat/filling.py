"""Rendering plain conversations by copying bytes: each by the skeleton of its roles.

roles      user, assistant | user, assistant | system, user        shapes     0 0 1
skeletons  0: <|im_start|>user⏎ {0} <|im_end|>⏎ …                   filled by two kernels: sizes, then bytes
           1: learned when it has come often enough to be worth it
"""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.tokenize.chat.messages import Conversations
from pipelines.prepare.tokenize.chat.rendering import ChatTemplate
from pipelines.prepare.tokenize.chat.skeletons import Skeleton, learn
from pipelines.prepare.tokenize.chat.spaces import SPACES, after_spaces, before_spaces
from pipelines.prepare.tokenize.chat.texts import Texts
from pipelines.prepare.tokenize.engines import utf8_of
from pipelines.prepare.tokenize.ragged import offsets_of
from tfrecord_io._kernels import copy, jit

__all__ = ["Filler"]

# Learning takes as long as rendering this many conversations of the kind, and skeletons are kept for good.
_WORTH_IT = 6
_MOST_SKELETONS = 4096


@dataclasses.dataclass(frozen=True)
class _Program:
    """Skeletons as arrays: that with number s has the segments edges[s] to edges[s + 1]. Segment j copies
    text[starts[j]:stops[j]], or the content of message `messages[j]` of the row where that is not negative, stripped
    as bits 1 (left) and 2 (right) of `strips[j]` say.
    """

    edges: np.ndarray
    messages: np.ndarray
    strips: np.ndarray
    learned: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    text: np.ndarray

    @classmethod
    def of(cls, skeletons: list[Skeleton]) -> _Program:
        segments = [segment for skeleton in skeletons for segment in skeleton.segments]
        texts = [segment.text.encode() for segment in segments]
        stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return cls(
            edges=offsets_of(np.array([len(skeleton.segments) for skeleton in skeletons], np.int64)),
            messages=np.array([segment.message for segment in segments], np.int64),
            strips=np.array([segment.left + 2 * segment.right for segment in segments], np.int64),
            learned=np.array([segment.learned for segment in segments], np.uint8),
            starts=stops - [len(text) for text in texts],
            stops=stops,
            text=np.frombuffer(b"".join(texts), np.uint8),
        )


class Filler:
    """Renders the plain conversations of a template whose roles it knows. Threads may share it."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, ...], int] = {}
        self._numbers: dict[tuple[str, ...], int] = {}  # -1 where there is no skeleton
        self._skeletons: list[Skeleton] = []
        self._program = _Program.of([])
        self._needles: frozenset[str] = frozenset()
        self._edges = np.zeros(128, bool)

    def fill(self, conversations: Conversations) -> tuple[np.ndarray, Texts]:
        """Which rows it renders (ascending indices), and their texts."""
        with self._lock:
            numbers = self._numbers_of(conversations)
            program, needles, edges = self._program, self._needles, self._edges
        contents = conversations.contents
        data, places = utf8_of(contents)
        starts, stops = places[:-1].copy(), places[1:].copy()
        unusual = np.zeros(len(contents), bool)
        _trim(data, places, SPACES, edges, starts, stops, unusual)
        for needle in sorted(needles):
            unusual |= pc.match_substring(contents, needle).to_numpy(zero_copy_only=False)
        numbers[conversations.owners[unusual]] = -1
        rows = np.flatnonzero(numbers >= 0)
        firsts, kinds = conversations.offsets[rows], numbers[rows]
        sizes = np.empty(len(rows), np.int64)
        trimmed = np.stack([places[:-1], starts, places[1:], stops])
        _measure(kinds, firsts, program.edges, program.messages, program.strips, program.stops - program.starts,
                 trimmed, sizes)  # fmt: skip
        filled = offsets_of(sizes)
        texts = Texts(np.empty(filled[-1], np.uint8), np.empty(filled[-1], np.uint8), filled)
        _copy(kinds, firsts, program.edges, program.messages, program.strips, program.learned, program.starts,
              program.stops, program.text, data, trimmed, filled, texts.data, texts.learned)  # fmt: skip
        return rows, texts

    def _numbers_of(self, conversations: Conversations) -> np.ndarray:
        """The number of each row's skeleton, -1 where there is none, int64 [N]."""
        plain = np.flatnonzero(conversations.plain)
        numbers = np.full(len(conversations), -1, np.int64)
        codes, names = conversations.roles
        if len(names) > 128 or not len(plain):
            return numbers
        shapes = _rows_of_bytes(codes.astype(np.uint8), conversations.offsets).take(pa.array(plain)).dictionary_encode()
        kinds = shapes.indices.to_numpy(zero_copy_only=False)
        counts = np.bincount(kinds, minlength=len(shapes.dictionary))
        known = [
            self._number(tuple(names[code] for code in shape.as_py()), int(count))
            for shape, count in zip(shapes.dictionary, counts, strict=True)
        ]
        numbers[plain] = np.array(known, np.int64)[kinds]
        return numbers

    def _number(self, roles: tuple[str, ...], count: int) -> int:
        if roles in self._numbers:
            return self._numbers[roles]
        if len(self._skeletons) >= _MOST_SKELETONS:
            return -1
        self._seen[roles] = self._seen.get(roles, 0) + count
        if self._seen[roles] < _WORTH_IT:
            return -1
        del self._seen[roles]
        skeleton = learn(self._template, roles)
        if skeleton is not None:
            self._numbers[roles] = len(self._skeletons)
            self._skeletons.append(skeleton)
            self._program = _Program.of(self._skeletons)
            self._needles |= skeleton.needles
            self._edges = self._edges.copy()
            self._edges[[ord(edge) for edge in skeleton.edges]] = True
        return self._numbers.setdefault(roles, -1)


def _rows_of_bytes(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """The bytes of each row as one binary value."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


@jit
def _trim(data, places, spaces, edges, starts, stops, unusual):  # type: ignore[no-untyped-def]
    """Moves `starts` and `stops` of each content to where it is without white space at its ends. Unusual is what has
    nothing else, or a character of `edges` there.
    """
    for index in range(len(starts)):
        first, behind = places[index], places[index + 1]
        starts[index] = after_spaces(data, first, behind, spaces)
        stops[index] = before_spaces(data, starts[index], behind, spaces)
        if starts[index] == stops[index]:
            unusual[index] = True
        else:
            begins, ends = data[first], data[behind - 1]
            unusual[index] = (begins < 128 and edges[begins]) or (ends < 128 and edges[ends])


@jit
def _measure(kinds, firsts, edges, messages, strips, fixed, trimmed, sizes):  # type: ignore[no-untyped-def]
    """Bytes of each row. `trimmed` are begins, begins without white space, ends, ends without it."""
    for row in range(len(kinds)):
        size = 0
        for segment in range(edges[kinds[row]], edges[kinds[row] + 1]):
            if messages[segment] < 0:
                size += fixed[segment]
            else:
                content = firsts[row] + messages[segment]
                strip = strips[segment]
                size += trimmed[2 + (strip >> 1), content] - trimmed[strip & 1, content]
        sizes[row] = size


@jit
def _copy(  # type: ignore[no-untyped-def]
    kinds, firsts, edges, messages, strips, learned, starts, stops, text, data, trimmed, filled, out, marks
):
    """Each row's segments, one after the other."""
    for row in range(len(kinds)):
        at = filled[row]
        for segment in range(edges[kinds[row]], edges[kinds[row] + 1]):
            if messages[segment] < 0:
                size = stops[segment] - starts[segment]
                copy(out, at, text, starts[segment], size)
            else:
                content = firsts[row] + messages[segment]
                first = trimmed[strips[segment] & 1, content]
                size = trimmed[2 + (strips[segment] >> 1), content] - first
                copy(out, at, data, first, size)
            mark = learned[segment]
            for index in range(np.uint64(at), np.uint64(at + size)):
                marks[index] = mark
            at += size
