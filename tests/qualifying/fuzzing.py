"""One strange tokenizer: who serves it, and whether texts and whole rows come out as the tokenizer makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.prepare.options.config import Truncation
from pipelines.prepare.tokenize.deterministic_tokenizers import require_deterministic
from pipelines.prepare.tokenize.engines import Engine, is_reference, open_reference
from pipelines.prepare.tokenize.engines.choice import decide
from pipelines.prepare.tokenize.text_rows import TemplateRows, open_rows, pad_like
from tests.qualifying import comparing, strange, strange_texts
from tests.qualifying.comparing import INT32
from tests.qualifying.strange import Strange

__all__ = ["Finding", "Outcome", "try_number"]

_TRUNCATIONS: tuple[Truncation, ...] = ("longest_first", "only_first", "only_second", "do_not_truncate")
# How the reason begins for which an engine is not used whose opening raises an error.
_FAILS = "it fails on this tokenizer"
_ROOMS = (1, 2, 5, 12, 40)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A difference, or an error that the reference does not raise. `texts` are as short as could be found: one, or a
    row's. `about`: what the tokenizer is like.
    """

    seed: int
    number: int
    engine: str
    what: str
    texts: tuple[str, ...]
    about: str


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What came out for one tokenizer. `engine` is empty if the tokenizer itself cannot be opened or used."""

    number: int
    family: str = ""
    engine: str = ""
    texts: int = 0
    rows: int = 0
    differing: int = 0
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def is_served(self) -> bool:
        """Whether a fast engine serves it, so that anything is proved."""
        return bool(self.engine) and not is_reference(self.engine)


def try_number(seed: int, number: int, *, num_texts: int) -> Outcome:
    """Tries the tokenizer of that seed and number on so many texts, and half as many rows."""
    outcome = Outcome(number=number)
    with _errors() as unusable:
        made = strange.make(seed, number)
        outcome.family = made.family
        require_deterministic(made.tokenizer, f"number {number}")  # or else a build refuses it
        reference = open_reference(made.tokenizer, dtype=INT32)
        texts = strange_texts.make(made, count=num_texts, seed=seed, number=number)
        reference.encode(pa.array(texts, pa.string()))
    if unusable:
        return outcome
    trial = _Trial(outcome, made, seed=seed)
    with _errors() as raised:
        choice = decide(made.tokenizer, reference, dtype=INT32)
    if raised:
        outcome.engine = "none"
        trial.found(f"choosing an engine raises {raised[0]}", ())
        return outcome
    engine = choice.engine
    outcome.engine = engine.name
    for name, reason in choice.reasons.items():
        if reason.startswith(_FAILS):
            trial.found(f"{name}: {reason}", ())
    if outcome.is_served:
        trial.compare_texts(engine, reference, texts)
        if not outcome.findings:
            trial.compare_rows(engine, texts[: num_texts // 2], rng=random.Random(f"rows {seed} {number}"))
    return outcome


@contextlib.contextmanager
def _errors() -> Iterator[list[str]]:
    """What is raised, as text. The panics of libraries in Rust are no Exception."""
    raised: list[str] = []
    try:
        yield raised
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raised.append(f"{type(error).__name__}: {error}"[:300])


class _Trial:
    def __init__(self, outcome: Outcome, made: Strange, *, seed: int) -> None:
        self._outcome, self._made, self._seed = outcome, made, seed

    def found(self, what: str, texts: tuple[str, ...]) -> None:
        outcome = self._outcome
        outcome.findings.append(
            Finding(
                seed=self._seed,
                number=outcome.number,
                engine=outcome.engine,
                what=what,
                texts=texts,
                about=self._made.about,
            )
        )

    def compare_texts(self, engine: Engine, reference: Engine, texts: list[str]) -> None:
        """The ids of texts without special tokens."""

        def differing(some: list[str]) -> list[int]:
            return comparing.differing(engine, reference, some)

        self._outcome.texts += len(texts)
        wrong = self._wrong(differing, texts)
        if wrong:
            shortest = min((texts[index] for index in wrong), key=len)
            text = comparing.shrink(shortest, lambda text: bool(_indices(differing, [text])))
            array = pa.array([text], pa.string())
            with _errors() as raised:
                got = str(engine.encode(array).ids.tolist())
            self.found(f"{raised or got} where the tokenizer gives {reference.encode(array).ids.tolist()}", (text,))

    def compare_rows(self, engine: Engine, texts: list[str], *, rng: random.Random) -> None:
        """Whole rows, padded, against the tokenizer's own call."""
        pair = rng.random() < 0.5
        columns = [texts, [*texts[1:], texts[0]]] if pair else [texts]
        truncation = rng.choice(_TRUNCATIONS if pair else (*_TRUNCATIONS[:2], *_TRUNCATIONS[3:]))
        tokenizer = self._made.tokenizer
        length = int(tokenizer.num_special_tokens_to_add(pair=pair)) + rng.choice(_ROOMS)
        with _errors() as raised:
            rows = open_rows(tokenizer, length=length, truncation=truncation, pair=pair, dtype=INT32)
        if raised:
            self.found(f"opening rows of {length} with {truncation} raises {raised[0]}", ())
            return
        if not isinstance(rows, TemplateRows):
            return
        faster = rows.with_engine(engine)

        def differing(some: list[tuple[str, ...]]) -> list[int]:
            each = [list(column) for column in zip(*some, strict=True)]
            return _padded_differ(faster, tokenizer, each, length=length, truncation=truncation)

        every = list(zip(*columns, strict=True))
        self._outcome.rows += len(every)
        wrong = self._wrong(differing, every)
        if wrong:
            row = _shrunk_row(every[wrong[0]], lambda row: bool(_indices(differing, [row])))
            self.found(f"other rows of {length} with {truncation}", row)

    def _wrong(self, differing: Callable[[list[Any]], list[int]], items: list[Any]) -> list[int]:
        wrong = _indices(differing, items)
        self._outcome.differing += len(wrong)
        return wrong


def _indices(differing: Callable[[list[Any]], list[int]], items: list[Any]) -> list[int]:
    """Those that differ; if all together raise an error, those that raise one or differ by themselves."""
    with _errors() as raised:
        found = differing(items)
    if not raised:
        return found
    return [0] if len(items) == 1 else [index for index, item in enumerate(items) if _indices(differing, [item])]


def _shrunk_row(row: tuple[str, ...], differs: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    for at in range(len(row)):
        row = _shrunk_at(row, at, differs)
    return row


def _shrunk_at(row: tuple[str, ...], at: int, differs: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    before, after = row[:at], row[at + 1 :]
    return (*before, comparing.shrink(row[at], lambda text: differs((*before, text, *after))), *after)


def _padded_differ(
    rows: TemplateRows, tokenizer: Any, columns: Sequence[list[str]], *, length: int, truncation: Truncation
) -> list[int]:
    """The indices of those rows that are not the tokenizer's own."""
    got = rows.encode([pa.array(column, pa.string()) for column in columns])
    possible = np.flatnonzero(~got.impossible)
    if not len(possible):
        return []
    padded = pad_like(tokenizer, got, length=length)
    expected = tokenizer(
        *([column[index] for index in possible] for column in columns),
        truncation=truncation,
        max_length=length,
        padding="max_length",
        return_attention_mask=True,
        verbose=False,
    )
    wrong = np.zeros(len(possible), bool)
    for name, values in expected.items():
        wrong |= (padded[name][possible] != np.array(values)).any(axis=1)
    return [int(index) for index in possible[wrong]]
