"""scripts/qualify_engines.py: its options, and tokenizers from files."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pipelines.prepare.tokenize.engines import HuggingFaceEngine
from scripts import qualify_engines
from tests.qualifying import comparing, kinds
from tests.qualifying.comparing import INT32, Effort, Trial

LITTLE = ("--strings=40", "--long-bytes=0", "--code-point-step=100000")
NOTHING = Effort(random_strings=0, code_point_step=1_000_000, rows=0, long_bytes=0)


def test_names_may_stand_behind_one_option_or_each_behind_its_own() -> None:
    words = ["kinds", "--engine", "unigram", "--kind", "a", "b", "--engine", "wordpiece", "gigatoken", "--kind", "c"]
    options = qualify_engines._options(words)
    assert options.engine == ["unigram", "wordpiece", "gigatoken"]
    assert options.kind == ["a", "b", "c"]


def test_without_a_name_all_engines_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def recorded(engine: Any, *, kind: str, tokenizer: Any, effort: Effort) -> Trial:
        tried.append(engine.name)
        return Trial(engine=engine.name, kind=kind)

    monkeypatch.setattr(comparing, "try_engine", recorded)
    monkeypatch.setattr(kinds, "KINDS", {kind: kinds.KINDS[kind] for kind in ("zoo wordpiece_cased", "gpt2", "llama2")})
    assert qualify_engines.main(["kinds", *LITTLE]) == 0
    assert tried == ["wordpiece", "fastokens", "gigatoken"]


@pytest.mark.parametrize(("flag", "left_out"), [("rstrip", "1,000 of 3,000 characters"), ("lstrip", "")])
def test_white_space_is_cut_where_the_references_memory_would_grow_with_its_square(
    flag: str, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "_MAX_WHITE", 2_000)
    kind = f"unigram added {flag}"
    tokenizer = kinds.tokenizer(kind)
    engine = comparing.ENGINES["unigram"](tokenizer, True)
    assert engine is not None
    effort = dataclasses.replace(NOTHING, long_bytes=60_000)
    trial = comparing.try_engine(engine, kind=kind, tokenizer=tokenizer, effort=effort)
    assert trial.left_out.startswith(left_out)
    assert bool(trial.left_out) is bool(left_out)
    assert trial.differing == 0
    assert (f"unigram, {kind}: without 1,000 of 3,000" in comparing.as_table([trial])) is bool(left_out)


def test_rows_that_cannot_be_compared_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = kinds.tokenizer("gpt2")
    engine = HuggingFaceEngine(tokenizer, dtype=INT32)
    assert comparing.try_engine(engine, kind="gpt2", tokenizer=tokenizer, effort=NOTHING).rows > 0
    monkeypatch.setattr(comparing, "probe", lambda backend, *, pair: None)
    assert comparing.try_engine(engine, kind="gpt2", tokenizer=tokenizer, effort=NOTHING).rows == 0
