"""An engine against the Rust tokenizer: what is counted, and the shortest text for which they differ."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.tokenize.engines import Engine, HuggingFaceEngine, copy_backend
from pipelines.prepare.tokenize.ragged import RaggedTokens
from pipelines.prepare.tokenize.special_tokens import probe
from pipelines.prepare.tokenize.text_rows import TemplateRows
from scripts.benchmarks.figures import table
from tests.qualifying import kinds, strings

__all__ = ["ENGINES", "INT32", "Effort", "Trial", "as_table", "differing", "rows_differ", "shrink", "try_engine"]

INT32 = np.dtype(np.int32)
_ROW_LENGTHS = (12, 64)
_MAX_ROW_TEXT = 300
_KEPT = 20
# Where an added token of white space takes what is behind it, too, the reference keeps the rest of the document for
# each match: 7.5 GB and 31 s for 40,000 spaces, and four times as much for twice as many.
_MAX_WHITE = 10_000


def _fastokens(tokenizer: Any, any_version: bool) -> Engine | None:
    from pipelines.prepare.tokenize.engines.fastokens_engine import open_fastokens

    return open_fastokens(tokenizer, dtype=INT32, any_version=any_version)


def _gigatoken(tokenizer: Any, any_version: bool) -> Engine | None:
    from pipelines.prepare.tokenize.engines.gigatoken_engine import open_gigatoken

    return open_gigatoken(tokenizer, dtype=INT32, any_version=any_version)


def _wordpiece(tokenizer: Any, any_version: bool) -> Engine | None:
    from pipelines.prepare.tokenize.engines.wordpiece.encoder import open_wordpiece

    return open_wordpiece(tokenizer, dtype=INT32)


def _unigram(tokenizer: Any, any_version: bool) -> Engine | None:
    from pipelines.prepare.tokenize.engines.unigram.encoder import open_unigram

    return open_unigram(tokenizer, dtype=INT32, any_version=any_version)


# Of each engine: how to open it for a tokenizer, in any version or in those that are qualified only.
ENGINES: dict[str, Callable[[Any, bool], Engine | None]] = {
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "fastokens": _fastokens,
    "gigatoken": _gigatoken,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is tried of each engine and kind."""

    random_strings: int
    code_point_step: int
    rows: int
    long_bytes: int
    seed: int = 0


@dataclasses.dataclass(kw_only=True)
class Trial:
    """What came out for one engine and one kind.

    `examples`: shortened texts that differ. `left_out`: what the reference cannot do, and why; mostly empty.
    """

    engine: str
    kind: str
    strings: int = 0
    rows: int = 0
    megabytes: float = 0.0
    differing: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    left_out: str = ""
    seconds: float = 0.0


def try_engine(engine: Engine, *, kind: str, tokenizer: Any, effort: Effort) -> Trial:
    """Compares it with the reference on all that the effort asks for."""
    began = time.perf_counter()
    reference = HuggingFaceEngine(tokenizer, dtype=INT32)
    trial = Trial(engine=engine.name, kind=kind)
    found: list[str] = []
    white = strings.white_document(effort.long_bytes // 20)
    if len(white) > _MAX_WHITE and _takes_white(tokenizer, white):
        trial.left_out = (
            f"{len(white) - _MAX_WHITE:,} of {len(white):,} characters of white space: an added token of white space "
            "takes what is behind it (rstrip), and the memory of the reference grows with the square of their number"
        )
        white = strings.white_document(_MAX_WHITE)
    for batch in _batches(effort, material=kinds.material(tokenizer), white=white):
        trial.strings += len(batch)
        trial.megabytes += sum(len(text.encode()) for text in batch) / 1e6
        found += [batch[index] for index in differing(engine, reference, batch)]
    trial.differing = len(found)
    shortest = sorted(found, key=len)[:_KEPT]
    trial.examples = sorted(
        {shrink(text, lambda text: bool(differing(engine, reference, [text]))) for text in shortest}
    )
    _try_rows(trial, engine, tokenizer=tokenizer, effort=effort)
    trial.seconds = time.perf_counter() - began
    return trial


def _takes_white(tokenizer: Any, white: str) -> bool:
    return any(token.rstrip and token.content in white for token in tokenizer.added_tokens_decoder.values())


def _batches(effort: Effort, *, material: list[str], white: str) -> Iterator[list[str]]:
    yield strings.written()
    yield from strings.random_batches(effort.random_strings, seed=effort.seed, material=material)
    yield from strings.every_code_point(step=effort.code_point_step)
    if effort.long_bytes:
        yield [*strings.long_documents(effort.long_bytes, seed=effort.seed, material=material), white]


def differing(engine: Engine, reference: Engine, texts: list[str]) -> list[int]:
    """The indices of those texts for which the ids differ.

    They come as a slice of a longer array, small strings and large ones in turn.
    """
    kind = pa.string() if len(texts) % 2 else pa.large_string()
    array = pa.array(["not this", *texts, "nor this"], kind)[1:-1]
    return _unequal(engine.encode(array), reference.encode(array))


def _unequal(got: RaggedTokens, expected: RaggedTokens) -> list[int]:
    if len(got) != len(expected):
        return list(range(len(expected)))
    if np.array_equal(got.ids, expected.ids) and np.array_equal(got.offsets, expected.offsets):
        return []
    pairs = zip(_lists(got), _lists(expected), strict=True)
    return [index for index, (ours, theirs) in enumerate(pairs) if not np.array_equal(ours, theirs)]


def _lists(runs: RaggedTokens) -> list[np.ndarray]:
    return np.split(runs.ids, runs.offsets[1:-1]) if len(runs) else []


def shrink(text: str, differs: Callable[[str], bool]) -> str:
    """A shorter text that differs too: pieces are left out, half of it first, as long as it does."""
    size = len(text) // 2
    while size:
        start, before = 0, len(text)
        while start < len(text):
            shorter = text[:start] + text[start + size :]
            if differs(shorter):
                text = shorter
            else:
                start += size
        size = size if len(text) < before and size == 1 else size // 2
    return text


def _try_rows(trial: Trial, engine: Engine, *, tokenizer: Any, effort: Effort) -> None:
    batches = strings.random_batches(effort.rows, seed=effort.seed + 1, material=kinds.material(tokenizer))
    possible = [pair for pair in (False, True) if probe(copy_backend(tokenizer), pair=pair) is not None]
    for texts in itertools.chain([strings.written()], batches):
        short = [text for text in texts if len(text) <= _MAX_ROW_TEXT]
        for pair, length in itertools.product(possible, _ROW_LENGTHS):
            columns = [short, short[1:] + short[:1]] if pair else [short]
            wrong = rows_differ(engine, tokenizer, columns, length=length)
            trial.rows += len(short)
            trial.differing += len(wrong)
            trial.examples += [short[index] for index in wrong[:_KEPT]]


def rows_differ(engine: Engine, tokenizer: Any, columns: list[list[str]], *, length: int) -> list[int]:
    """The indices of those rows, cut to `length`, that are not the tokenizer's own."""
    template = probe(copy_backend(tokenizer), pair=len(columns) == 2)
    if template is None:
        return []
    encoder = TemplateRows(engine, template, tokenizer=tokenizer, length=length, truncation="longest_first")
    got = encoder.encode([pa.array(column, pa.string()) for column in columns])
    expected = tokenizer(*columns, truncation="longest_first", max_length=length, padding=False, verbose=False)
    wrong = _not_these(got.ids, expected["input_ids"])
    if got.types is not None:
        wrong |= _not_these(RaggedTokens(got.types, got.ids.offsets), expected["token_type_ids"])
    return sorted(wrong)


def _not_these(runs: RaggedTokens, lists: Iterable[list[int]]) -> set[int]:
    pairs = enumerate(zip(_lists(runs), lists, strict=True))
    return {index for index, (ours, theirs) in pairs if ours.tolist() != theirs}


def as_table(trials: Sequence[Trial]) -> str:
    """One line for each engine and kind; below, what differs and what was left out."""
    rows = [
        [
            trial.engine,
            trial.kind,
            f"{trial.strings:,}",
            f"{trial.rows:,}",
            f"{trial.megabytes:,.1f}",
            f"{trial.differing:,}",
            f"{trial.seconds:,.0f}",
        ]
        for trial in trials
    ]
    lines = [table(["engine", "kind", "texts", "rows", "MB", "differ", "s"], rows)]
    for trial in trials:
        lines += [f"{trial.engine}, {trial.kind}: {text!a}" for text in sorted(trial.examples, key=len)[:3]]
        lines += [f"{trial.engine}, {trial.kind}: without {trial.left_out}"] if trial.left_out else []
    return "\n".join(lines)
