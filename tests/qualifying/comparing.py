"""Compare an engine with the Rust tokenizer: counts, and the shortest text with different ids.

A trial has one engine and one kind of tokenizer, or one strange tokenizer and the engine that a build would choose for
it.
"""

import contextlib
import dataclasses
import importlib
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import Truncation
from pipelines.prepare.tokenize.engines import (
    Engine,
    HuggingFaceEngine,
    base,
    choice,
    copy_backend,
    decide,
    is_reference,
    open_reference,
)
from pipelines.prepare.tokenize.ragged import RaggedTokens
from pipelines.prepare.tokenize.special_tokens import probe
from pipelines.prepare.tokenize.text_rows import RowEncoder, TemplateRows, open_rows
from pipelines.prepare.tokenize.tokenization import require_deterministic
from scripts.benchmarks.figures import table
from tests.qualifying import kinds, strange, strings

INT32 = np.dtype(np.int32)
ENGINES = tuple(choice.FAST_ENGINES)
_ROW_LENGTHS = (12, 64)
_MAX_ROW_TEXT = 300
_KEPT = 20
_TRUNCATIONS: tuple[Truncation, ...] = ("longest_first", "only_first", "do_not_truncate", "only_second")
# Prefix of the reason for not using an engine that raises an error when opened.
_FAILS = "it fails on this tokenizer"
_ROOMS = (1, 2, 5, 12, 40)
# If an added token of white space also takes the following characters, the reference keeps the rest of the document
# for each match: 7.5 GB and 31 s for 40,000 spaces, and four times that for twice as many.
_MAX_WHITE = 10_000


def opened(name: str, tokenizer: Any, *, dtype: np.dtype = INT32, any_version: bool = False) -> Engine:
    """The engine of that name; of packages in any version, or in those that are qualified only.

    Raises: NotQualified if it does not serve the tokenizer.
    """
    module, kind = choice.FAST_ENGINES[name]
    make = getattr(importlib.import_module(module), kind)
    within = mock.patch.object(base, "_is_of", return_value=True) if any_version else contextlib.nullcontext()
    with within:
        engine: Engine = make(HuggingFaceEngine(tokenizer, dtype=dtype), dtype=dtype)
    return engine


@dataclasses.dataclass(kw_only=True)
class Trial:
    """What came out for an engine and a kind of tokenizer.

    `examples`: shortened texts that differ; of a strange tokenizer, sentences about what differs or was raised. Its
    `engine` is "unusable" if the tokenizer itself cannot be opened or used. `try_engine` counts
    the `ids` that were compared and the CPU seconds of both.
    """

    engine: str
    kind: str
    strings: int = 0
    rows: int = 0
    megabytes: float = 0.0
    ids: int = 0
    seconds: float = 0.0
    reference_seconds: float = 0.0
    differing: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)


def try_engine(
    engine: Engine,
    *,
    kind: str,
    tokenizer: Any,
    random_strings: int,
    code_point_step: int,
    rows: int,
    long_bytes: int,
    seed: int = 0,
) -> Trial:
    """Compare the engine with the reference on random strings, on every n-th code point, and on rows."""
    reference = _Timed(HuggingFaceEngine(tokenizer, dtype=INT32))
    timed = _Timed(engine)
    trial = Trial(engine=engine.name, kind=kind)
    wrong: list[str] = []
    material = kinds.material(tokenizer)
    batches: list[Iterable[list[str]]] = [
        [strings.written()],
        strings.random_batches(random_strings, seed=seed, material=material),
        strings.random_bytes(random_strings // 10, seed=seed),
        strings.every_code_point(step=code_point_step),
    ]
    if long_bytes:
        white = strings.white_document(min(long_bytes // 20, _MAX_WHITE))
        batches.append([[*strings.long_documents(long_bytes, seed=seed, material=material), white]])
    for batch in itertools.chain.from_iterable(batches):
        trial.strings += len(batch)
        trial.megabytes += sum(len(text.encode()) for text in batch) / 1e6
        wrong += [batch[index] for index in differing(timed, reference, batch)]
    trial.differing = len(wrong)
    trial.ids, trial.seconds, trial.reference_seconds = reference.ids, timed.seconds, reference.seconds
    shortest = sorted(wrong, key=len)[:_KEPT]
    trial.examples = sorted({shortened(text, engine, reference) for text in shortest})
    _try_rows(trial, engine, tokenizer, strings.random_batches(rows, seed=seed + 1, material=material))
    return trial


class _Timed:
    """An engine that counts its ids and CPU seconds."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.ids, self.seconds = engine, 0, 0.0
        self.name, self.version, self.concurrent = engine.name, engine.version, engine.concurrent

    def encode(self, texts: pa.Array) -> RaggedTokens:
        """The engine's tokens."""
        began = time.process_time()
        runs = self.engine.encode(texts)
        self.seconds += time.process_time() - began
        self.ids += len(runs.ids)
        return runs


def differing(engine: Engine, reference: Engine, texts: list[str], *, times: int = 1) -> list[int]:
    """Return the indices of the texts with different ids, the first time that any differ.

    The texts are a slice of a longer array, with small strings and large ones in turn.
    """
    kind = pa.string() if len(texts) % 2 else pa.large_string()
    array = pa.array(["not this", *texts, "nor this"], kind)[1:-1]
    expected = reference.encode(array)
    for _ in range(times):
        runs = engine.encode(array)
        if not (np.array_equal(runs.ids, expected.ids) and np.array_equal(runs.offsets, expected.offsets)):
            break
    else:
        return []
    if len(runs) != len(expected):
        return list(range(len(expected)))
    pairs = zip(_lists(runs), _lists(expected), strict=True)
    return [index for index, (ours, theirs) in enumerate(pairs) if not np.array_equal(ours, theirs)]


def _lists(runs: RaggedTokens) -> list[np.ndarray]:
    return np.split(runs.ids, runs.offsets[1:-1]) if len(runs) else []


def shortened(text: str, engine: Engine, reference: Engine) -> str:
    """A shorter text that differs too: pieces are left out, half of it first, as long as it does."""
    size = len(text) // 2
    while size:
        start, before = 0, len(text)
        while start < len(text):
            shorter = text[:start] + text[start + size :]
            if differing(engine, reference, [shorter]):
                text = shorter
            else:
                start += size
        size = size if len(text) < before and size == 1 else size // 2
    return text


def _try_rows(trial: Trial, engine: Engine, tokenizer: Any, batches: Iterable[list[str]]) -> None:
    pads = tokenizer.pad_token_id is not None
    possible = [pair for pair in (False, True) if pads and probe(copy_backend(tokenizer), pair=pair) is not None]
    for texts in itertools.chain([strings.written()], batches):
        short = [text for text in texts if len(text) <= _MAX_ROW_TEXT]
        for pair, length in itertools.product(possible, _ROW_LENGTHS):
            columns = [short, short[1:] + short[:1]] if pair else [short]
            wrong = rows_differ(engine, tokenizer, columns, length=length)
            trial.rows += len(short)
            trial.differing += len(wrong)
            trial.examples += [short[index] for index in wrong[:_KEPT]]


def rows_differ(
    engine: Engine, tokenizer: Any, columns: list[list[str]], *, length: int, truncation: Truncation = "longest_first"
) -> list[int]:
    template = probe(copy_backend(tokenizer), pair=len(columns) == 2)
    assert template is not None
    encoder = TemplateRows(engine, template, tokenizer=tokenizer, length=length, truncation=truncation)
    return wrong_rows(encoder, tokenizer, columns, length=length, truncation=truncation)


def wrong_rows(
    encoder: RowEncoder, tokenizer: Any, columns: list[list[str]], *, length: int, truncation: Truncation
) -> list[int]:
    """The indices of those possible rows that are not the tokenizer's own."""
    rows = encoder.encode([pa.array(column, pa.string()) for column in columns])
    possible = np.flatnonzero(~rows.impossible)
    if not len(possible):
        return []
    expected = tokenizer(
        *([column[index] for index in possible] for column in columns),
        truncation=truncation,
        max_length=length,
        verbose=False,
    )
    ours = {"input_ids": _lists(rows.ids)}
    if rows.types is not None:
        ours["token_type_ids"] = _lists(RaggedTokens(rows.types, rows.ids.offsets))
    assert ours.keys() == expected.keys() - {"attention_mask"}
    return [
        int(row)
        for at, row in enumerate(possible)
        if any(values[row].tolist() != expected[name][at] for name, values in ours.items())
    ]


def as_table(trials: Sequence[Trial]) -> str:
    """One line for each engine and kind; below, what differs."""
    rows = []
    for engine, kind in dict.fromkeys((trial.engine, trial.kind) for trial in trials):
        some = [trial for trial in trials if (trial.engine, trial.kind) == (engine, kind)]
        names = ("strings", "ids", "rows", "megabytes", "differing")
        counts = [sum(getattr(trial, name) for trial in some) for name in names]
        share = sum(trial.seconds for trial in some) / (sum(trial.reference_seconds for trial in some) or 1)
        row = [engine, kind, f"{len(some):,}", *(f"{count:,.1f}".removesuffix(".0") for count in counts)]
        rows.append([*row, f"{share:.2f}" if share else ""])
    lines = [table(["engine", "kind", "tokenizers", "texts", "ids", "rows", "MB", "differ", "CPU share"], rows)]
    for trial in trials:
        lines += [f"{trial.engine}, {trial.kind}: {text!a}" for text in sorted(trial.examples, key=len)[:3]]
    return "\n".join(lines)


# --- strange tokenizers -----------------------------------------------------------------------------------------------


def try_strange(seed: int, number: int, *, num_texts: int) -> Trial:
    """Try the strange tokenizer of this seed and number on these many texts, and half as many rows."""
    trial = Trial(engine="unusable", kind="not opened")
    with _errors() as unusable:
        trial.kind, tokenizer = strange.make(seed, number)
        require_deterministic(tokenizer, f"number {number}")  # or else a build refuses it
        reference = open_reference(tokenizer, dtype=INT32)
        material = kinds.material(tokenizer)
        (texts,) = strings.random_batches(num_texts, seed=f"{seed} {number}", material=material)
        reference.encode(pa.array(texts, pa.string()))
    if unusable:
        return trial
    with _errors() as raised:
        engine, reasons = decide(tokenizer, reference, dtype=INT32)
        trial.engine = engine.name
        trial.examples += [f"{name}: {why}" for name, why in reasons.items() if why.startswith(_FAILS)]
        if not is_reference(trial.engine):
            trial.strings += len(texts)
            if wrong := differing(engine, reference, texts):
                text = shortened(min((texts[index] for index in wrong), key=len), engine, reference)
                trial.examples.append(f"{len(wrong)} texts differ, such as {text}")
            else:
                rng = random.Random(f"rows {seed} {number}")
                _try_strange_rows(trial, engine, tokenizer, texts[: num_texts // 2], rng=rng)
    trial.examples += raised
    trial.differing = len(trial.examples)
    trial.examples = [f"{text}; strange --seed {seed} --only {number}" for text in trial.examples]
    return trial


@contextlib.contextmanager
def _errors() -> Iterator[list[str]]:
    """Return the raised error as text. Rust panics are not subclasses of Exception."""
    raised: list[str] = []
    try:
        yield raised
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raised.append(f"{type(error).__name__}: {error}"[:300])


def _try_strange_rows(trial: Trial, engine: Engine, tokenizer: Any, texts: list[str], *, rng: random.Random) -> None:
    """Compare whole rows with the tokenizer's own call."""
    pair = rng.random() < 0.5
    columns = [texts, [*texts[1:], texts[0]]] if pair else [texts]
    truncation = rng.choice(_TRUNCATIONS if pair else _TRUNCATIONS[:3])
    length = int(tokenizer.num_special_tokens_to_add(pair=pair)) + rng.choice(_ROOMS)
    rows = open_rows(tokenizer, length=length, truncation=truncation, pair=pair, dtype=INT32)
    if isinstance(rows, TemplateRows):
        trial.rows += len(texts)
        if wrong := rows_differ(engine, tokenizer, columns, length=length, truncation=truncation):
            row = [column[wrong[0]] for column in columns]
            trial.examples.append(f"{len(wrong)} rows of {length} with {truncation} differ, such as {row}")
