"""Every engine gives the ids of the Rust tokenizer for the kinds that it is qualified for, and refuses the others.

The short form of scripts/qualify_engines.py: the same kinds, generators and comparison with fewer strings.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.tokenize.engines import BATTERY, HuggingFaceEngine, qualified
from pipelines.prepare.tokenize.engines.fastokens_engine import open_fastokens
from pipelines.prepare.tokenize.engines.gigatoken_engine import open_gigatoken
from pipelines.prepare.tokenize.engines.qualified import NotQualified
from pipelines.prepare.tokenize.ragged import RaggedTokens
from tests.qualifying import comparing, kinds, strings
from tests.qualifying.comparing import ENGINES, INT32, Effort

EFFORT = Effort(random_strings=300, code_point_step=300, rows=12, long_bytes=0)
# One of each sort; scripts/qualify_engines.py tries all.
SERVED = [
    *(("fastokens", kind) for kind in ("gpt2", "modernbert", "llama3", "qwen2", "added mixed")),
    *(("gigatoken", kind) for kind in ("llama2", "llama2 first", "llama2 no unknown")),
    *(("wordpiece", kind) for kind in ("zoo wordpiece_uncased",)),
    *(("unigram", kind) for kind in ("zoo unigram", "unigram t5 converted", "unigram albert")),
]
# Texts for which the package gives other ids: see docs/explanation/engines.md.
REFUSED = [
    ("fastokens", "gpt2 as split"),
    ("fastokens", "cl100k"),
    ("fastokens", "own pattern"),
    ("fastokens", "zoo bpe_fallback"),
    ("fastokens", "zoo unigram"),
    ("gigatoken", "gpt2"),
    ("gigatoken", "llama2 ignore_merges"),
    ("gigatoken", "llama2 added rstrip"),
    ("gigatoken", "llama2 added single_word"),
    ("wordpiece", "gpt2"),
    ("unigram", "gpt2"),
    ("unigram", "llama2 split"),
]


@functools.cache
def tokenizer(kind: str) -> Any:
    """Trained once: none of these tests changes it."""
    return kinds.tokenizer(kind)


def _opened(name: str, kind: str) -> Any:
    return ENGINES[name](tokenizer(kind), True)


def _lists(runs: RaggedTokens) -> list[list[int]]:
    return [part.tolist() for part in np.split(runs.ids, runs.offsets[1:-1])]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_an_engine_gives_the_ids_of_the_tokenizer(name: str, kind: str) -> None:
    trial = comparing.try_engine(_opened(name, kind), kind=kind, tokenizer=tokenizer(kind), effort=EFFORT)
    assert trial.strings > 400
    assert trial.rows > 400
    assert trial.examples == []
    assert trial.differing == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen2"])
def test_the_scanners_cut_as_the_expressions_do_whatever_class_stands_beside_which(kind: str) -> None:
    classes = "aAǅʰª\u0301中1² \t\n\r\u00a0\u3000's.+/l"
    texts = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product(classes, repeat=size)]
    reference = HuggingFaceEngine(tokenizer(kind), dtype=INT32)
    assert comparing.differing(_opened("fastokens", kind), reference, texts) == []


@pytest.mark.parametrize(("name", "kind"), [SERVED[0], SERVED[5], *SERVED[8:10]])
def test_an_engine_that_travels_to_another_process_gives_the_same_ids(name: str, kind: str) -> None:
    """There it needs no `transformers`, whose import costs 0.5 s of CPU."""
    engine = _opened(name, kind)
    code = "import pickle, sys; engine, texts = pickle.load(sys.stdin.buffer); runs = engine.encode(texts)\n"
    code += "assert 'transformers' not in sys.modules; sys.stdout.buffer.write(pickle.dumps(runs))"
    texts = pa.array(BATTERY)
    answer = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((engine, texts)), capture_output=True)
    assert _lists(pickle.loads(answer.stdout)) == _lists(engine.encode(texts)), answer.stderr.decode()


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_an_engine_refuses_a_kind_for_which_it_is_not_qualified(name: str, kind: str) -> None:
    assert _opened(name, kind) is None


def test_no_unknown_token_is_needed_where_each_byte_has_an_entry() -> None:
    made = tokenizer("llama2 no unknown")
    engine = _opened("gigatoken", "llama2 no unknown")
    assert made.backend_tokenizer.model.unk_token is None
    assert comparing.differing(engine, HuggingFaceEngine(made, dtype=INT32), strings.written()) == []


@pytest.mark.parametrize("open_engine", [open_fastokens, open_gigatoken])
def test_an_untried_version_is_not_used(open_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"fastokens": "99.0.0", "gigatoken": "99.0.0", "tokenizers": "0.23.0"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    assert [open_engine(tokenizer(kind), dtype=INT32) for kind in ("gpt2", "llama2")] == [None, None]


@pytest.mark.parametrize("version", ["0.22.2", "0.24.0", "0.23.0rc1"])
def test_no_engine_is_used_beside_a_reference_that_it_was_not_compared_with(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", {"a": "1.2.3", "tokenizers": version}.__getitem__)
    tried = ((1, 2, 3), (1, 2, 3))
    with pytest.raises(NotQualified, match=re.escape(f"tokenizers {version} is installed")):
        qualified.require_release("a", tried=tried, any_version=False)
    assert qualified.require_release("a", tried=tried, any_version=True) == "1.2.3"


def test_a_package_that_is_not_installed_serves_nothing() -> None:
    with pytest.raises(
        NotQualified, match="no-such-package-as-this is not installed; pip install no-such-package-as-this"
    ):
        qualified.require_release("no-such-package-as-this", tried=((0,), (9,)), any_version=True)


@pytest.mark.parametrize(("name", "kind"), [("fastokens", "gpt2"), ("gigatoken", "llama2")])
def test_ids_that_the_dtype_cannot_hold_are_not_cut(name: str, kind: str) -> None:
    opener = {"fastokens": open_fastokens, "gigatoken": open_gigatoken}[name]
    assert opener(tokenizer(kind), dtype=np.dtype(np.uint8), any_version=True) is None
    narrow = opener(tokenizer(kind), dtype=np.dtype(np.uint16), any_version=True)
    assert narrow is not None
    assert narrow.encode(pa.array(["The house"])).ids.dtype == np.uint16


@pytest.mark.parametrize(("name", "kind"), [("fastokens", "gpt2"), ("gigatoken", "llama2")])
@pytest.mark.parametrize("texts", [[], [""], ["", "a", ""]], ids=str)
def test_no_texts_and_empty_texts(name: str, kind: str, texts: list[str]) -> None:
    reference = HuggingFaceEngine(tokenizer(kind), dtype=INT32)
    array = pa.array(texts, pa.string())
    got, expected = _opened(name, kind).encode(array), reference.encode(array)
    assert (got.offsets.tolist(), got.ids.tolist()) == (expected.offsets.tolist(), expected.ids.tolist())


@pytest.mark.parametrize(("name", "kind"), [("fastokens", "gpt2"), ("gigatoken", "llama2 first")])
def test_threads_that_share_an_engine_get_what_one_thread_gets(name: str, kind: str) -> None:
    engine = _opened(name, kind)
    made = strings.random_batches(1_200, seed=9, material=kinds.material(tokenizer(kind)), size=100)
    batches = [pa.array(batch) for batch in made]
    alone = [_lists(engine.encode(batch)) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        assert [_lists(runs) for runs in pool.map(engine.encode, batches)] == alone


def test_a_text_that_differs_is_shortened_to_what_makes_it_differ() -> None:
    assert comparing.shrink("some words, then a\u180eb, then others", lambda text: "a\u180e" in text) == "a\u180e"


def test_an_engine_that_errs_is_found_out() -> None:
    right = HuggingFaceEngine(tokenizer("gpt2"), dtype=INT32)

    class Erring(HuggingFaceEngine):
        def encode(self, texts: pa.Array) -> RaggedTokens:
            return super().encode(pa.array([text.replace("\u180e", "") for text in texts.to_pylist()]))

    wrong = Erring(tokenizer("gpt2"), dtype=INT32)
    assert comparing.differing(wrong, right, ["a", "b\u180e", "c"]) == [1]
    assert comparing.rows_differ(wrong, tokenizer("gpt2"), [["a", "b\u180e", "c"]], length=12) == [1]
    assert comparing.rows_differ(right, tokenizer("gpt2"), [["a", "b\u180e", "c"]], length=12) == []
