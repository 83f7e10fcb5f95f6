"""Every engine gives the ids of the Rust tokenizer for the kinds that it is qualified for, and refuses the others.

The kinds come from scripts/qualify_engines.py, with fewer texts. Features of single engines have separate files.
"""

import functools
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from pipelines.prepare.tokenize.engines import BATTERY, Engine, HuggingFaceEngine, NotQualified
from tests.prepare.tokenize.odd_tokenizers import altered_kind, assert_same, bert, check
from tests.qualifying import comparing, kinds, strings
from tests.qualifying.comparing import INT32
from tests.support import texts
from tests.support.tokenizers_zoo import Zoo

pytestmark = pytest.mark.engines

# One of each engine, and for our own one for each way of treating spaces and each step that looks at neighbours.
SERVED = {
    "wordpiece": ["zoo wordpiece_uncased", "zoo wordpiece_cased"],
    "unigram": ["unigram t5", "unigram t5 converted", "unigram rembert", "unigram nmt nfkc", "unigram nfd"],
    "fastokens": ["gpt2", "modernbert", "llama3", "qwen2", "added mixed"],
    "gigatoken": ["llama2", "llama2 first", "llama2 no unknown"],
}
EACH = [(name, kind) for name, some in SERVED.items() for kind in some]
ONE = [(name, some[0]) for name, some in SERVED.items()]
OURS = [pair for pair in EACH if pair[0] in ("wordpiece", "unigram")]
# Texts with other ids from the package: see docs/explanation/engines.md.
REFUSED = [
    *(("fastokens", kind) for kind in ("gpt2 as split", "cl100k", "own pattern", "zoo bpe_fallback", "zoo unigram")),
    *(("gigatoken", f"llama2 {kind}") for kind in ("ignore_merges", "added rstrip", "added single_word")),
    *(("gigatoken", "gpt2"), ("wordpiece", "gpt2"), ("wordpiece", "zoo unigram"), ("unigram", "gpt2")),
    ("unigram", "llama2 split"),
]
STRANGE_TEXTS = 120
any_text = st.text(st.one_of(st.sampled_from("  ae\n<>'`\u0301\u200d▁"), st.characters(codec="utf-8")), max_size=60)


@functools.cache
def tokenizer(kind: str) -> Any:
    return kinds.tokenizer(kind)


@functools.cache
def pair_of(name: str, kind: str) -> tuple[Engine, HuggingFaceEngine]:
    return comparing.opened(name, tokenizer(kind), any_version=True), HuggingFaceEngine(tokenizer(kind), dtype=INT32)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), EACH)
def test_an_engine_gives_the_ids_and_the_rows_of_the_tokenizer(name: str, kind: str) -> None:
    effort = {"random_strings": 150, "code_point_step": 1000, "rows": 4, "long_bytes": 0}
    trial = comparing.try_engine(pair_of(name, kind)[0], kind=kind, tokenizer=tokenizer(kind), **effort)
    assert trial.strings > 300
    assert trial.rows > 300
    assert trial.examples == []
    assert trial.differing == 0


@pytest.mark.parametrize(("name", "kind"), EACH)
@settings(max_examples=30)
@given(samples=st.lists(any_text, max_size=20))
def test_any_texts_get_the_ids_of_the_tokenizer(name: str, kind: str, samples: list[str]) -> None:
    engine, reference = pair_of(name, kind)
    column = pa.array(samples, pa.string())
    assert_same(engine.encode(column), reference.encode(column), samples)


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_hostile_and_mutated_texts_get_the_ids_of_the_tokenizer(name: str, kind: str) -> None:
    check(name, tokenizer(kind), [*strings.written(), *texts.sentences(10, seed=3), *texts.mutated(10, seed=4)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [pair for pair in OURS if pair[1] != "unigram t5 converted"])
def test_code_points_of_the_basic_plane_alone_and_beside_what_joins(name: str, kind: str) -> None:
    # "t5 converted" has the table of "t5".
    # Of Chinese characters, Korean syllables and those for private use, one in 29: they are of one kind each.
    alike = {*range(0x3400, 0xA000), *range(0xAC00, 0xD7A4), *range(0xE000, 0xF900)}
    code_points = [point for point in range(0x10000) if point not in alike or point % 29 == 0]
    points = [chr(point) for point in code_points if not 0xD800 <= point < 0xE000]
    for form in ("{0}ab{0} {0} a{0}", "{0}\u0334{0}\u094d \u1100{0}\u302e{0}\u1b44"):
        differing = comparing.differing(*pair_of(name, kind), [form.format(point) for point in points])
        assert [ascii(points[index]) for index in differing] == []


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_an_engine_refuses_a_kind_for_which_it_is_not_qualified(name: str, kind: str) -> None:
    with pytest.raises(NotQualified):
        comparing.opened(name, tokenizer(kind), any_version=True)


@pytest.mark.parametrize(("name", "kind"), ONE)
def test_slices_large_strings_and_no_texts_at_all(name: str, kind: str) -> None:
    engine, reference = pair_of(name, kind)
    column = pa.array(["", "the house", "é", "", "</s> [MASK] x", "中文" * 9, "a" * 33, ""], pa.string())
    cut = [column.slice(start, size) for start in range(9) for size in range(9 - start)]
    for piece in [pa.array([], pa.string()), *cut, *(piece.cast(pa.large_string()) for piece in cut)]:
        assert_same(engine.encode(piece), reference.encode(piece), piece.to_pylist())


@pytest.mark.parametrize("word", ["abcdefghijklmnopqrstu", "é", "中", "a!", " ", "the "], ids=ascii)
@pytest.mark.parametrize(("name", "kind"), [pair for pair in ONE if pair in OURS])
def test_a_text_that_ends_with_its_buffer_is_read_to_its_end_and_no_further(name: str, kind: str, word: str) -> None:
    engine, reference = pair_of(name, kind)
    for size in range(40):
        data = (word * 40)[:size].encode()
        edges = np.array([0, 0, len(data)], np.int32)
        column = pa.StringArray.from_buffers(2, pa.py_buffer(edges), pa.py_buffer(data))
        assert_same(engine.encode(column), reference.encode(column), column.to_pylist())


@pytest.mark.parametrize(("name", "kind"), [pair for pair in ONE if pair in OURS])
def test_bytes_that_stand_for_no_code_point_are_an_error(name: str, kind: str) -> None:
    engine, _ = pair_of(name, kind)
    for data in (b"a\xff", b"\x80", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        column = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
        with pytest.raises(UnicodeDecodeError):
            engine.encode(column)


@pytest.mark.parametrize(("name", "kind"), ONE)
def test_ids_are_of_the_dtype_asked_for_or_refused_where_it_cannot_hold_them(name: str, kind: str) -> None:
    with pytest.raises(NotQualified, match="largest id"):
        comparing.opened(name, tokenizer(kind), dtype=np.dtype(np.uint8), any_version=True)
    runs = comparing.opened(name, tokenizer(kind), dtype=np.dtype(np.uint16)).encode(pa.array(["The house"]))
    assert (str(runs.ids.dtype), str(runs.offsets.dtype)) == ("uint16", "int64")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ONE)
def test_threads_that_share_an_engine_get_what_one_thread_gets(name: str, kind: str) -> None:
    engine, reference = pair_of(name, kind)
    made = strings.random_batches(900, seed=9, material=kinds.material(tokenizer(kind)), size=100)
    batches = [pa.array(batch) for batch in made]
    with ThreadPoolExecutor(4) as pool:
        for batch, runs in zip(batches * 2, pool.map(engine.encode, batches * 2), strict=True):
            assert_same(runs, reference.encode(batch), batch.to_pylist())


@pytest.mark.slow
def test_engines_that_travel_to_another_process_give_the_same_ids() -> None:
    """The other process needs no `transformers`, which would cost 0.5 s of CPU."""
    engines, texts_of_all_scripts = [comparing.opened(name, tokenizer(kind)) for name, kind in ONE], pa.array(BATTERY)
    code = "import pickle, sys; engines, texts = pickle.load(sys.stdin.buffer)\n"
    code += "runs = [each.encode(texts) for each in engines]; assert 'transformers' not in sys.modules\n"
    code += "sys.stdout.buffer.write(pickle.dumps(runs))"
    sent = pickle.dumps((engines, texts_of_all_scripts))
    answer = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True)
    for engine, runs in zip(engines, pickle.loads(answer.stdout), strict=True):
        assert_same(runs, engine.encode(texts_of_all_scripts), list(BATTERY))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("name", "kind"), [pair for pair in ONE if pair[0] != "gigatoken"])
def test_special_tokens_are_split_where_the_tokenizer_is_told_so(name: str, kind: str, split: bool) -> None:
    made = kinds.tokenizer(kind)
    made.split_special_tokens = split
    check(name, made, ["a </s> b", "[MASK]", "<unk> <unk>x", "<|endoftext|>", *texts.HOSTILE])


@pytest.mark.parametrize("flags", [{}, {"lstrip": True, "rstrip": True}, {"single_word": True}], ids=str)
@pytest.mark.parametrize("kind", ["wordpiece", "t5", "t5 converted", "rembert"])
def test_texts_that_hold_an_added_token(zoo: Zoo, kind: str, flags: dict[str, bool]) -> None:
    contents = (*kinds.ADDED, "[X]", "house", "the", " of", "中", "<a b>", "\x00", "[X] [Y]", "!", "0")
    added = [AddedToken(content, normalized=False, **flags) for content in contents]
    forms = ["{}", "a {} b", "a{}b", "{0}{0}", "  {}  .", "é{}é", "A{}", "{}\x01", "x" * 20 + "{}", "{}" + "x" * 20]
    held = [form.replace("{0}", "{}").replace("{}", content) for content in contents for form in (*forms, " {} ")]
    almost = [(content[:-1], content[1:], content.upper(), f"{content[:1]} {content[1:]}") for content in contents]
    made = bert(zoo, added=added) if kind == "wordpiece" else altered_kind(zoo, kind, added=added)
    name = kind if kind == "wordpiece" else "unigram"
    check(name, made, [*held, *(part for parts in almost for part in parts), *held])


@pytest.mark.slow
def test_no_strange_tokenizer_gets_other_tokens_from_the_engine_that_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `scripts/qualify_engines.py strange`, with a new seed each time."""
    # Where the tokenizers library panics, the trace takes longer than the rest.
    monkeypatch.setenv("RUST_BACKTRACE", "0")
    seed = random.SystemRandom().randrange(2**32)
    trials = [comparing.try_strange(seed, number, num_texts=STRANGE_TEXTS) for number in range(40)]
    table = comparing.as_table(trials)
    assert not any(trial.examples for trial in trials), table
    # Most of WordPiece alone are served, 10 of each family are tried.
    assert sum(trial.strings for trial in trials) >= 3 * STRANGE_TEXTS, table
