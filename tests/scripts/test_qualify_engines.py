"""scripts/qualify_engines.py: its options, and tokenizers from files."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines import HuggingFaceEngine
from pipelines.prepare.tokenize.engines.choice import Choice
from pipelines.prepare.tokenize.ragged import RaggedTokens
from scripts import qualify_engines
from tests.qualifying import comparing, figures, files, kinds
from tests.qualifying.comparing import INT32, Effort, Trial
from tests.support.tokenizers_zoo import Zoo

LITTLE = ("--strings=40", "--long-bytes=0", "--code-point-step=100000")
NOTHING = Effort(random_strings=0, code_point_step=1_000_000, rows=0, long_bytes=0)


class Erring(HuggingFaceEngine):
    """Passes for a fast engine, and forgets every x."""

    name = "wordpiece"

    def encode(self, texts: pa.Array) -> RaggedTokens:
        return super().encode(pa.array([text.replace("x", "") for text in texts.to_pylist()], pa.string()))


def _chosen(tokenizer: Any, reference: Any, *, dtype: Any, reasons: dict[str, str], erring: bool) -> Choice:
    return Choice(engine=Erring(tokenizer, dtype=dtype) if erring else reference, reasons=reasons)


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


@pytest.mark.parametrize("alone", [False, True])
def test_a_tokenizer_from_files_is_compared_with_the_engine_that_serves_it(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str], alone: bool
) -> None:
    path = zoo.path("wordpiece_uncased")
    if alone:
        path = tmp_path / "other name.json"
        path.write_bytes((zoo.path("wordpiece_uncased") / "tokenizer.json").read_bytes())
    assert qualify_engines.main(["files", str(path), "--json", *LITTLE]) == 0
    shown = capsys.readouterr()
    assert f"{path}: served by wordpiece\n" in shown.err
    (trial,) = json.loads(shown.out)["trials"]
    assert (trial["engine"], trial["kind"], trial["differing"]) == ("wordpiece", str(path), 0)
    assert trial["strings"] > 100
    assert trial["rows"] > 400


def test_where_the_reference_serves_it_the_reasons_are_shown(zoo: Zoo, capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("slow_byt5")
    assert qualify_engines.main(["files", str(path), *LITTLE]) == 0
    shown = capsys.readouterr()
    assert f"{path}: served by slow (wordpiece: the Python code of a ByT5Tokenizer decides" in shown.err
    assert str(path) not in shown.out


def test_a_difference_gives_exit_status_1(
    zoo: Zoo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "decide", functools.partial(_chosen, reasons={}, erring=True))
    assert qualify_engines.main(["files", str(zoo.path("unigram")), *LITTLE]) == 1
    assert f"wordpiece, {zoo.path('unigram')}: 'x'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reason", "status"), [("it fails on this tokenizer: oh", 1), ("it gives other tokens", 1), ("its model is BPE", 0)]
)
def test_an_engine_that_errs_while_it_is_chosen_gives_exit_status_1(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, reason: str, status: int
) -> None:
    monkeypatch.setattr(files, "decide", functools.partial(_chosen, reasons={"unigram": reason}, erring=False))
    assert qualify_engines.main(["files", str(zoo.path("unigram")), *LITTLE]) == status


def test_what_cannot_be_opened_gives_exit_status_1_and_the_others_are_tried(
    zoo: Zoo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    paths = [str(broken), str(tmp_path), str(zoo.path("unigram"))]
    assert qualify_engines.main(["files", *paths, *LITTLE]) == 1
    shown = capsys.readouterr()
    assert f"{broken}: no tokenizer.json that can be opened" in shown.err
    assert "expected tokenizer.json" in shown.err
    assert "| unigram" in shown.out
    with pytest.raises(SystemExit) as ended:
        qualify_engines.main(["files", str(tmp_path / "absent"), *LITTLE])
    assert ended.value.code == 2


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
    assert (f"unigram, {kind}: without 1,000 of 3,000" in figures.as_table([trial])) is bool(left_out)


def test_rows_that_cannot_be_compared_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = kinds.tokenizer("gpt2")
    engine = HuggingFaceEngine(tokenizer, dtype=INT32)
    assert comparing.try_engine(engine, kind="gpt2", tokenizer=tokenizer, effort=NOTHING).rows > 0
    monkeypatch.setattr(comparing, "probe", lambda backend, *, pair: None)
    assert comparing.try_engine(engine, kind="gpt2", tokenizer=tokenizer, effort=NOTHING).rows == 0
