"""scripts/qualify_engines.py: its trials, and the report of a difference."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines import HuggingFaceEngine, choice
from pipelines.prepare.tokenize.ragged import RaggedTokens
from scripts import qualify_engines
from tests.qualifying import comparing, kinds
from tests.qualifying.comparing import INT32, Trial

LITTLE = ("--strings=40", "--long-bytes=0", "--code-point-step=100000")


class Erring(HuggingFaceEngine):
    """Passes for a fast engine, and forgets every x."""

    name = "wordpiece"

    def encode(self, texts: pa.Array) -> RaggedTokens:
        return super().encode(pa.array([text.replace("x", "") for text in texts.to_pylist()], pa.string()))


def test_names_may_stand_behind_one_option_or_each_behind_its_own() -> None:
    words = ["kinds", "--engine", "unigram", "--kind", "a", "b", "--engine", "wordpiece", "gigatoken", "--kind", "c"]
    options = qualify_engines._options(words)
    assert options.engine == ["unigram", "wordpiece", "gigatoken"]
    assert options.kind == ["a", "b", "c"]


@pytest.mark.slow
def test_published_tokenizers_are_opened_from_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds.tokenizer("gpt2").save_pretrained(tmp_path / "saved")
    assert qualify_engines.main(["files", str(tmp_path / "saved"), *LITTLE]) == 0
    assert "saved" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.engines
def test_without_a_name_all_engines_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def recorded(engine: Any, *, kind: str, tokenizer: Any, **effort: int) -> Trial:
        tried.append(engine.name)
        return Trial(engine=engine.name, kind=kind)

    monkeypatch.setattr(comparing, "try_engine", recorded)
    monkeypatch.setattr(kinds, "KINDS", {kind: kinds.KINDS[kind] for kind in ("zoo wordpiece_cased", "gpt2", "llama2")})
    assert qualify_engines.main(["kinds", *LITTLE]) == 0
    assert tried == ["wordpiece", "fastokens", "gigatoken"]


@pytest.mark.slow
def test_an_engine_that_errs_is_found_out_with_the_smallest_text() -> None:
    tokenizer = kinds.tokenizer("gpt2")
    effort = {"random_strings": 60, "code_point_step": 100_000, "rows": 0, "long_bytes": 0}
    trial = comparing.try_engine(Erring(tokenizer, dtype=INT32), kind="gpt2", tokenizer=tokenizer, **effort)
    assert trial.differing
    assert "x" in trial.examples
    columns = [["a", "bx", "c"]]
    assert comparing.rows_differ(Erring(tokenizer, dtype=INT32), tokenizer, columns, length=12) == [1]
    assert comparing.rows_differ(HuggingFaceEngine(tokenizer, dtype=INT32), tokenizer, columns, length=12) == []


@pytest.mark.slow
@pytest.mark.parametrize("texts_too", [True, False])
def test_a_difference_of_a_strange_tokenizer_is_told_with_what_repeats_it(
    texts_too: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def decide(tokenizer: Any, reference: Any, **options: Any) -> Any:
        return Erring(tokenizer, **options), choice.decide(tokenizer, reference, **options)[1]

    monkeypatch.setattr(comparing, "decide", decide)
    if not texts_too:
        monkeypatch.setattr(comparing, "differing", lambda *arguments: [])
    assert qualify_engines.main(["strange", "--seed=3", "--tokenizers=12", "--texts=60"]) == 1
    printed = capsys.readouterr().out
    assert ("texts differ, such as x;" if texts_too else "rows of ") in printed
    assert "; strange --seed 3 --only " in printed
