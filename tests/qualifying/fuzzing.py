"""One strange tokenizer: who serves it, and whether texts and whole rows come out as the tokenizer makes them."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.prepare.options.config import Truncation
from pipelines.prepare.tokenize.deterministic_tokenizers import require_deterministic
from pipelines.prepare.tokenize.engines import Engine, is_reference, open_reference
from pipelines.prepare.tokenize.engines.choice import decide
from pipelines.prepare.tokenize.text_rows import TemplateRows, open_rows
from scripts.benchmarks.figures import table
from tests.qualifying import comparing, strange
from tests.qualifying.comparing import INT32

__all__ = ["Outcome", "as_text", "try_number"]

_TRUNCATIONS: tuple[Truncation, ...] = ("longest_first", "only_first", "do_not_truncate", "only_second")
# How the reason begins for which an engine is not used whose opening raises an error.
_FAILS = "it fails on this tokenizer"
_ROOMS = (1, 2, 5, 12, 40)


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What came out for one tokenizer. `engine` is empty if the tokenizer itself cannot be opened or used; `findings`
    are differences, and errors that the reference does not raise.
    """

    number: int
    family: str = ""
    engine: str = ""
    texts: int = 0
    rows: int = 0
    findings: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_served(self) -> bool:
        """Whether a fast engine serves it, so that anything is proved."""
        return bool(self.engine) and not is_reference(self.engine)


def try_number(seed: int, number: int, *, num_texts: int) -> Outcome:
    """Tries the tokenizer of that seed and number on so many texts, and half as many rows."""
    outcome = Outcome(number=number)
    with _errors() as unusable:
        outcome.family, tokenizer = strange.make(seed, number)
        require_deterministic(tokenizer, f"number {number}")  # or else a build refuses it
        reference = open_reference(tokenizer, dtype=INT32)
        texts = strange.texts_for(tokenizer, count=num_texts, seed=seed, number=number)
        reference.encode(pa.array(texts, pa.string()))
    if unusable:
        return outcome
    with _errors() as raised:
        choice = decide(tokenizer, reference, dtype=INT32)
        outcome.engine = choice.engine.name
        outcome.findings += [f"{name}: {why}" for name, why in choice.reasons.items() if why.startswith(_FAILS)]
        if outcome.is_served:
            _compare_texts(outcome, choice.engine, reference, texts)
            if not outcome.findings:
                rng = random.Random(f"rows {seed} {number}")
                _compare_rows(outcome, choice.engine, tokenizer, texts[: num_texts // 2], rng=rng)
    outcome.findings += raised
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


def _compare_texts(outcome: Outcome, engine: Engine, reference: Engine, texts: list[str]) -> None:
    outcome.texts += len(texts)
    if wrong := comparing.differing(engine, reference, texts):
        text = comparing.shortened(min((texts[index] for index in wrong), key=len), engine, reference)
        outcome.findings.append(f"{len(wrong)} texts differ, such as {text!a}")


def _compare_rows(outcome: Outcome, engine: Engine, tokenizer: Any, texts: list[str], *, rng: random.Random) -> None:
    """Whole rows, padded, against the tokenizer's own call."""
    pair = rng.random() < 0.5
    columns = [texts, [*texts[1:], texts[0]]] if pair else [texts]
    truncation = rng.choice(_TRUNCATIONS if pair else _TRUNCATIONS[:3])
    length = int(tokenizer.num_special_tokens_to_add(pair=pair)) + rng.choice(_ROOMS)
    rows = open_rows(tokenizer, length=length, truncation=truncation, pair=pair, dtype=INT32)
    if isinstance(rows, TemplateRows):
        outcome.rows += len(texts)
        if wrong := comparing.rows_differ(engine, tokenizer, columns, length=length, truncation=truncation):
            row = ascii([column[wrong[0]] for column in columns])
            outcome.findings.append(f"{len(wrong)} rows of {length} with {truncation} differ, such as {row}")


def as_text(every: Sequence[Outcome], *, seed: int) -> str:
    """A line for each family and who served it, and below the findings with what replays them."""
    rows = []
    for family, engine in sorted({(each.family, each.engine) for each in every}):
        some = [each for each in every if (each.family, each.engine) == (family, engine)]
        counts = (len(some), *(sum(getattr(each, name) for each in some) for name in ("texts", "rows")))
        rows.append([family or "not opened", engine or "unusable", *(f"{count:,}" for count in counts)])
    lines = [table(["family", "engine", "tokenizers", "texts", "rows"], rows)]
    found = [(each, finding) for each in every for finding in each.findings]
    served = sum(each.is_served for each in every)
    lines.append(f"seed {seed}: {len(every):,} tokenizers, {served:,} served by a fast engine; {len(found):,} findings")
    lines += [f"{each.engine}: {finding}; strange --seed {seed} --only {each.number}" for each, finding in found]
    return "\n".join(lines)
