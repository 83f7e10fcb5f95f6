"""Packing against a plain copy of the rows it makes, on one core, and how full the rows are.

python -m scripts.benchmarks.packing [--tokens MILLIONS]
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import numpy as np

from pipelines.prepare.layouts import packing
from pipelines.prepare.tokenize.document_frames import DocumentFrame
from pipelines.prepare.tokenize.ragged import RaggedTokens, offsets_of
from scripts import arguments
from scripts.benchmarks import figures, machine
from scripts.benchmarks.figures import Figure, median, number

__all__ = ["report"]

_LENGTHS = (512, 2048, 8192)
_ROUNDS = 5
_TOKENS_PER_CHUNK = 1 << 19
# What most text is like, and so what the bars are for.
_NATURAL, _NATURAL_LENGTH = "pages", 2048


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Texts with log-normal lengths: their median in tokens, and the spread of the logarithm."""

    name: str
    median: int
    spread: float


_KINDS = (
    _Kind("pages", 400, 1.0),
    _Kind("articles", 600, 1.2),
    _Kind("reviews", 180, 0.7),
    _Kind("sentences", 25, 0.6),
    _Kind("all about as long", 400, 0.2),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measured:
    """Seconds of each step, for rows that are full to `fill`."""

    num_tokens: int
    fill: float
    pack: float
    lay_out: float
    copy: float

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / (self.pack + self.lay_out)


def report(*, tokens: int) -> tuple[str, list[Figure]]:
    """The table, and the figures with a bar."""
    rows, found = [], []
    for kind in _KINDS:
        documents = _documents(kind, tokens=tokens)
        for length in _LENGTHS:
            measured = _measure(documents, length=length)
            rows.append([kind.name, number(length), *_cells(measured)])
            if (kind.name, length) == (_NATURAL, _NATURAL_LENGTH):
                found = [
                    Figure(name=f"{kind.name}: fill", measured=100 * measured.fill, at_least=98.0, unit=" %"),
                    Figure(
                        name=f"{kind.name}: packing and laying out",
                        measured=measured.tokens_per_second / 1e6,
                        at_least=200.0,
                        unit=" M tokens/s",
                    ),
                ]
    headers = ["texts", "L", "fill, %", "pack", "lay out", "both", "copy of the rows, M tokens/s"]
    return figures.table(headers, rows), found


def _cells(measured: _Measured) -> list[str]:
    times = (measured.pack, measured.lay_out, measured.pack + measured.lay_out, measured.copy)
    return [f"{100 * measured.fill:.2f}", *(number(measured.num_tokens / seconds / 1e6) for seconds in times)]


def _documents(kind: _Kind, *, tokens: int) -> RaggedTokens:
    rng = np.random.default_rng(0)
    count = int(1.2 * tokens / (kind.median * np.exp(kind.spread**2 / 2)))
    offsets = offsets_of(np.maximum(1, rng.lognormal(np.log(kind.median), kind.spread, count)).astype(np.int64))
    offsets = offsets[: np.searchsorted(offsets, tokens)]
    return RaggedTokens(rng.integers(0, 2**16, offsets[-1]).astype(np.uint16), offsets)


def _measure(documents: RaggedTokens, *, length: int) -> _Measured:
    lengths = documents.lengths + 1
    order = np.random.default_rng(0).permutation(len(lengths))
    seconds: list[tuple[float, float, float]] = []
    for _ in range(_ROUNDS + 1):
        started = time.perf_counter()
        packed = packing.pack(lengths, length=length, order=order)
        seconds.append((time.perf_counter() - started, *_lay_out(documents, packed, length=length)))
    # The first round compiles.
    pack, lay_out, copy = (median(step) for step in zip(*seconds[1:], strict=True))
    num_tokens = int(lengths.sum())
    fill = num_tokens / (len(packed) * length)
    return _Measured(num_tokens=num_tokens, fill=fill, pack=pack, lay_out=lay_out, copy=copy)


def _lay_out(documents: RaggedTokens, packed: packing.Packing, *, length: int) -> tuple[float, float]:
    """Seconds for laying out all rows, chunk by chunk, and for copying them."""
    step = max(1, _TOKENS_PER_CHUNK // length)
    laying_out = copying = 0.0
    for start in range(0, len(packed), step):
        part = packed.rows(start, start + step)
        started = time.perf_counter()
        rows = packing.lay_out(documents, part, length=length, pad_id=0, frame=DocumentFrame(after=(1,)))
        laid_out = time.perf_counter()
        for values in rows.values():
            np.copyto(np.empty_like(values), values)
        laying_out += laid_out - started
        copying += time.perf_counter() - laid_out
    return laying_out, copying


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=arguments.positive, default=20, metavar="MILLIONS", help="default %(default)s")
    options = parser.parse_args()
    print(f"{machine.line()}\n", flush=True)
    text, found = report(tokens=options.tokens * 1_000_000)
    print(f"{text}\n\n{figures.bars_table(found)}")


if __name__ == "__main__":
    main()
