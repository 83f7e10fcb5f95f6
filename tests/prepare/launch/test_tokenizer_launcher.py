"""Training a tokenizer: every kind and style from rows to a folder that transformers opens and a fast engine serves."""

import functools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from pipelines.prepare import storage
from pipelines.prepare.launch import tokenizer_launcher
from pipelines.prepare.launch.tokenizer_launcher import TrainedTokenizer
from pipelines.prepare.options.source_config import FunctionOption, SourceConfig
from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.prepare.tokenizer_training.styles import template_of
from tests import building
from tests.support.texts import MULTI_SCRIPT, reviews
from tfrecord_io.errors import ColumnError, ConfigError, OutputError, PrepError, SourceError

ENGINES = {"wordpiece": "wordpiece", "unigram": "unigram", "byte-bpe": "fastokens", "bpe": "gigatoken"}
# Kinds and styles, and the special tokens of a row of two texts.
SPECIAL = {
    ("wordpiece", "bert"): ["[CLS]", "[SEP]", "[SEP]"],
    ("unigram", "albert"): ["[CLS]", "[SEP]", "[SEP]"],
    ("unigram", "t5"): ["</s>", "</s>"],
    ("byte-bpe", "gpt2"): [],
    ("byte-bpe", "roberta"): ["<s>", "</s>", "</s>", "</s>"],
    ("byte-bpe", "llama"): ["<|begin_of_text|>", "<|begin_of_text|>"],
    ("bpe", "llama"): ["<s>", "<s>"],
}
COMBINATIONS = list(SPECIAL)
TRAIN = str(building.REVIEWS / "train.jsonl")


def request(output: object, kind: str, style: str | None = None, **changes: Any) -> TokenizerRequest:
    source = {"dataset": TRAIN, **changes.pop("source", {})}
    options = {"vocab_size": 800, **changes}
    return TokenizerRequest(source=SourceConfig(**source), output=str(output), kind=kind, style=style, **options)  # type: ignore[arg-type]


def train(output: object, kind: str, style: str | None = None, **changes: Any) -> TrainedTokenizer:
    return tokenizer_launcher.train_tokenizer(request(output, kind, style, **changes))


def conversations(folder: Path, form: str) -> dict[str, Any]:
    """The reviews as conversations of a form, in a file; return the changes to a request."""
    question = "Which?"
    user = {"role": "user", "content": [{"type": "text", "text": question}]}
    row_of: dict[str, Callable[[str], dict[str, Any]]] = {
        "conversations": lambda text: {form: [{"from": "human", "value": question}, {"from": "gpt", "value": text}]},
        "messages": lambda text: {form: [user, {"role": "assistant", "content": text}]},
        "prompt": lambda text: {"prompt": question, "completion": text},
    }
    path = building.source(folder, **{form: [*map(row_of[form], reviews())]}) / f"{form}.jsonl"
    return {"source": {"dataset": str(path)}}


def test_conversations_are_learned_by_what_is_said_in_them(tmp_path: Path) -> None:
    texts = [turn for text in reviews() for turn in ("Which?", text)]
    plain = building.source(tmp_path, plain=[{"text": text} for text in texts]) / "plain.jsonl"
    expected = train(tmp_path / "expected", "byte-bpe", source={"dataset": str(plain)})
    for form in ("conversations", "messages", "prompt"):
        trained = train(tmp_path / form, "byte-bpe", **conversations(tmp_path, form))
        assert trained.evaluation == expected.evaluation
        assert trained.rows.trained == len(reviews())
        assert set(trained.columns) == ({form} if form != "prompt" else {"prompt", "completion"})
        theirs, ours = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("expected", form))
        assert ours == theirs


def test_rows_with_neither_texts_nor_conversations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"title": "no text"}\n')
    with pytest.raises(ColumnError, match="has no column 'text'"):
        train(tmp_path / "out", "byte-bpe", source={"dataset": str(path)})


@functools.cache
def made(kind: str, style: str) -> tuple[Path, TrainedTokenizer]:
    folder = building.new_folder() / f"{kind}-{style}"
    return folder, train(folder, kind, style)


def opened(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


@pytest.mark.parametrize(("kind", "style"), COMBINATIONS)
class TestEveryStyle:
    @pytest.mark.engines
    def test_a_fast_engine_serves_a_vocabulary_of_the_size_that_was_asked_for(self, kind: str, style: str) -> None:
        folder, trained = made(kind, style)
        assert trained.evaluation.engine == ENGINES[kind]
        tokenizer = opened(folder)
        assert len(tokenizer) == trained.vocab_size == 800
        assert sorted(tokenizer.get_vocab().values()) == list(range(800))

    def test_transformers_opens_and_saves_it_unchanged(self, kind: str, style: str, tmp_path: Path) -> None:
        folder, _ = made(kind, style)
        opened(folder).save_pretrained(tmp_path)
        saved, ours = (json.loads((place / "tokenizer.json").read_text()) for place in (tmp_path, folder))
        assert saved == ours
        template = template_of(style, kind)  # type: ignore[arg-type]
        tokenizer = opened(folder)
        assert {role: getattr(tokenizer, role) for role in template.roles} == template.roles
        assert set(tokenizer.all_special_tokens) == set(template.special)
        assert tokenizer.padding_side == template.padding_side
        assert tuple(tokenizer.model_input_names) == template.input_names

    def test_text_comes_back_as_far_as_its_kind_can(self, kind: str, style: str) -> None:
        tokenizer = opened(made(kind, style)[0])
        normalizer = tokenizer.backend_tokenizer.normalizer
        for text in (*reviews()[:50], *(MULTI_SCRIPT if kind in ("byte-bpe", "bpe") else ())):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            back = tokenizer.decode(ids, skip_special_tokens=True)
            if kind == "wordpiece":  # it does not know which spaces there were
                assert back.replace(" ", "") == normalizer.normalize_str(text).replace(" ", "")
            else:
                assert back == (normalizer.normalize_str(text) if normalizer else text)


@pytest.mark.slow
def test_neither_threads_nor_another_process_change_a_byte(tmp_path: Path) -> None:
    combinations = [("wordpiece", "bert"), ("byte-bpe", "gpt2"), ("bpe", "llama")]
    requests = [request(tmp_path / f"{kind}-{style}", kind, style, workers=1) for kind, style in combinations]
    code = "import pickle, sys; from pipelines.prepare.launch import tokenizer_launcher\n"
    code += "for request in pickle.load(sys.stdin.buffer): tokenizer_launcher.train_tokenizer(request)"
    environment = {**building.environment(), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(requests), check=True, env=environment)
    for kind, style in combinations:
        assert building.files(tmp_path / f"{kind}-{style}") == building.files(made(kind, style)[0]), (kind, style)


@pytest.mark.slow
def test_two_unigram_vocabularies_have_the_same_pieces(tmp_path: Path) -> None:
    train(tmp_path / "again", "unigram")
    pieces = [set(opened(tokenizer).get_vocab()) for tokenizer in (tmp_path / "again", made("unigram", "albert")[0])]
    assert len(pieces[0] & pieces[1]) >= 0.98 * 800


@pytest.mark.slow
def test_a_row_has_the_special_tokens_of_its_style() -> None:
    rows = {key: opened(made(*key)[0]) for key in COMBINATIONS}
    tokens = {
        key: tokenizer.convert_ids_to_tokens(tokenizer("so", "so")["input_ids"]) for key, tokenizer in rows.items()
    }
    special = {key: [token for token in row if token in rows[key].all_special_tokens] for key, row in tokens.items()}
    assert special == SPECIAL
    assert rows["wordpiece", "bert"]("so", "so")["token_type_ids"][-1] == 1
    assert rows["unigram", "t5"].convert_tokens_to_ids("<extra_id_0>") == 799
    assert (rows["byte-bpe", "gpt2"].model_max_length, rows["wordpiece", "bert"].model_max_length) == (1024, 512)


@pytest.mark.slow
def test_the_guides_recipe() -> None:
    tokenizer = opened(made("unigram", "albert")[0])
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("``Où'' ＡＢ") == '"ou" ab'


def test_options_are_in_the_files(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    options: dict[str, Any] = {"special_tokens": ("<a>", "[MASK]"), "max_length": 77, "lowercase": False}
    trained = train(tmp_path, "wordpiece", chat_template=template, min_frequency=3, **options)
    tokenizer = opened(tmp_path)
    assert tokenizer.convert_tokens_to_ids("<a>") == 5
    assert "<a>" in tokenizer.all_special_tokens
    assert tokenizer.tokenize("so<a>so", add_special_tokens=False).count("<a>") == 1
    assert (tokenizer.model_max_length, tokenizer.chat_template) == (77, template)
    assert not tokenizer.backend_tokenizer.normalizer.lowercase
    assert json.loads((tmp_path / "training.json").read_text())["vocab_size"] == trained.vocab_size <= 800


def table(folder: Path, texts: Sequence[str | None], **columns: Any) -> str:
    rows, path = pa.table({"text": pa.array(texts, pa.string()), **columns}), folder / "rows.parquet"
    pq.write_table(rows, path, row_group_size=50)
    return str(path)


def test_the_first_texts_are_measured(tmp_path: Path) -> None:
    rows = table(tmp_path, ["common words"] * 400)
    trained = train(tmp_path / "out", "wordpiece", source={"dataset": rows}, vocab_size=300)
    assert (trained.rows.trained, trained.evaluation.texts) == (400, 400)
    assert (trained.evaluation.unknown_share, trained.evaluation.tokens_per_word) == (0.0, 1.0)


def test_rows_without_text_and_filtered_rows_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps_of_words.py").write_text(
        "import pyarrow.compute as pc\n"
        "def shout(table):\n    return table.set_column(0, 'text', pc.utf8_upper(table['text']))\n"
        "def short(table):\n    return pc.less(pc.fill_null(pc.utf8_length(table['text']), 0), 6)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = table(tmp_path, ["abc abc", None, "ab", "abab", ""] * 20)
    functions = (
        FunctionOption(kind="map", spec="steps_of_words:shout"),
        FunctionOption(kind="filter", spec="steps_of_words:short"),
    )
    source = {"dataset": rows, "functions": functions, "limit": 50}
    trained = train(tmp_path / "out", "byte-bpe", source=source, vocab_size=260)
    sys.modules.pop("steps_of_words", None)
    assert (trained.rows.rejected, trained.rows.filtered) == ({"text_null": 10}, {"filtered": 10})
    assert (trained.rows.trained, trained.rows.text_bytes) == (30, 60)
    assert {"AB", "ABAB"} <= opened(tmp_path / "out").get_vocab().keys()


def test_any_storage_takes_it() -> None:
    train("memory://tokenizers/one", "byte-bpe")
    assert storage.read_folder("memory://tokenizers/one") == building.files(made("byte-bpe", "gpt2")[0])
    storage.delete("memory://tokenizers")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(OutputError, match=r"holds tokenizer\.json, expected an empty or new folder"):
        train(tmp_path, "byte-bpe")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("kind", "options", "cause", "remedy"),
        [
            ("wordpiece", {"vocab_size": 5}, "this style already has 5 special tokens", "more than 5"),
            ("byte-bpe", {"vocab_size": 200}, "this style already has 257 special tokens and bytes", "more than 257"),
            ("wordpiece", {"vocab_size": 30}, "and the characters of the texts", "larger --vocab-size"),
            ("unigram", {"vocab_size": 30}, "and the characters of the texts", "larger --vocab-size"),
            ("unigram", {"style": "t5", "vocab_size": 100}, "already has 103 special tokens", "more than 103"),
        ],
    )
    def test_a_vocabulary_without_room_says_how_much_it_needs(
        self, tmp_path: Path, kind: str, options: dict[str, Any], cause: str, remedy: str
    ) -> None:
        with pytest.raises(ConfigError) as refused:
            train(tmp_path / "out", kind, **options)
        assert cause in refused.value.cause
        assert remedy in refused.value.remedy
        assert not (tmp_path / "out").exists()

    def test_too_large_a_vocabulary_is_said(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for kind in ("wordpiece", "unigram"):
            trained = train(tmp_path / kind, kind, vocab_size=50_000)
            assert trained.vocab_size < 10_000
            assert f"a vocabulary of only {trained.vocab_size:,} tokens, expected 50,000" in caplog.text

    @pytest.mark.parametrize(
        ("kind", "texts"), [("wordpiece", ["", None, " \n"]), ("unigram", ["", None]), ("byte-bpe", [None] * 3)]
    )
    def test_a_dataset_without_words_is_refused(self, tmp_path: Path, texts: list[str | None], kind: str) -> None:
        rows = table(tmp_path, texts)
        with pytest.raises(SourceError, match="hold no words"):
            train(tmp_path / "out", kind, source={"dataset": rows})

    def test_a_mistake_in_a_template_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PrepError, match="--chat-template: line 2: "):
            train(tmp_path / "out", "byte-bpe", chat_template="{% for each in messages %}\n{% endif %}")

    @pytest.mark.parametrize(
        ("options", "cause"),
        [
            ({"kind": "wordpiece", "style": "gpt2"}, "--style gpt2 with --kind wordpiece"),
            ({"kind": "unigram", "style": "llama"}, "--style llama with --kind unigram"),
            ({"kind": "byte-bpe", "lowercase": True}, "--lowercase or --no-lowercase with --style gpt2"),
            ({"kind": "unigram", "min_frequency": 2}, "--min-frequency was given with --kind unigram"),
            ({"kind": "byte-bpe", "vocab_size": 0}, "--vocab-size 0, expected at least 1"),
            ({"kind": "byte-bpe", "special_tokens": (" ",)}, "--special-token ' ' is blank"),
            ({"kind": "byte-bpe", "special_tokens": ("<a>", "<a>")}, "given twice"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, options: dict[str, Any], cause: str) -> None:
        with pytest.raises(ConfigError) as refused:
            request("out", **options)
        assert cause in refused.value.cause


def test_a_sample_is_spread_over_all_rows(tmp_path: Path) -> None:
    texts = [f"{'abcdefgh'[number // 1000]} {number:05d}" for number in range(8000)]
    source = {"dataset": table(tmp_path, texts), "splits": ("a=train[:50%]", "b=train[50%:]")}
    trained = train(tmp_path / "out", "wordpiece", source=source, vocab_size=40, sample=2000)
    assert trained.splits == {"a": 4000, "b": 4000}
    assert abs(trained.sampled_rows - 2000) <= 300
    assert trained.rows.trained == trained.sampled_rows
    assert {"a", "e"} < opened(tmp_path / "out").get_vocab().keys()
