"""The reference gives the ids of the tokenizer; the choice of an engine says which one, and of each refused one why."""

import logging
import sys
from importlib import metadata
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken

from pipelines.prepare.layouts import crosscheck
from pipelines.prepare.options.config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import ColumnPlan, Rows
from pipelines.prepare.tokenize.engines import BATTERY, Engine, HuggingFaceEngine, choice, decide, open_reference
from pipelines.prepare.tokenize.library_failures import TextsNotEncoded
from tests.prepare.layouts import encoding
from tests.prepare.tokenize.odd_tokenizers import altered_kind, byte_level, sentencepiece, wrapped
from tests.qualifying import comparing
from tests.qualifying.comparing import INT32
from tests.support import lying_engine, seams
from tests.support.tokenizers_zoo import Zoo
from tfrecord_io.errors import ConfigError, TokenizerError

pytestmark = pytest.mark.engines

# Its first added token consumes white space that contains the second one, which makes the Rust library panic.
PANICS = [
    AddedToken("x", normalized=False, rstrip=True),
    AddedToken("\n", normalized=False, lstrip=True),
    AddedToken("<pad>", normalized=False, special=True),
]


class PanicException(BaseException):
    """As pyo3's: no Exception."""


def _decide(tokenizer: Any, **options: Any) -> tuple[Engine, dict[str, str]]:
    return decide(tokenizer, open_reference(tokenizer, dtype=INT32), dtype=INT32, **options)


def _pretend_version(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None) -> None:
    real = metadata.version

    def pretended(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", pretended)


@pytest.mark.parametrize(
    ("kind", "engine", "refused"),
    [
        ("wordpiece_uncased", "wordpiece", []),
        ("unigram", "unigram", ["wordpiece"]),
        ("byte_bpe", "fastokens", ["wordpiece", "unigram"]),
        ("bpe_fallback", "gigatoken", ["wordpiece", "unigram", "fastokens"]),
        ("byte_bpe_bos", "hf", ["wordpiece", "unigram", "fastokens", "gigatoken"]),
        ("slow_byt5", "slow", ["wordpiece", "unigram", "fastokens", "gigatoken"]),
    ],
)
def test_the_engine_and_a_reason_for_each_that_was_refused_before_it(
    zoo: Zoo, kind: str, engine: str, refused: list[str]
) -> None:
    chosen, reasons = _decide(zoo.tokenizer(kind))
    assert (chosen.name, list(reasons)) == (engine, refused)
    assert all(reason and not reason.endswith(".") and "\n" not in reason for reason in reasons.values())


@pytest.mark.parametrize(
    ("kind", "package", "version", "cause"),
    [
        ("byte_bpe", "fastokens", None, "fastokens is not installed; pip install fastokens"),
        ("bpe_fallback", "gigatoken", "0.11.0", "gigatoken 0.11.0 is installed, but 0.10.0 is qualified; pip install"),
        ("bpe_fallback", "gigatoken", "0.10.0rc1", "gigatoken 0.10.0rc1 is installed, but 0.10.0 is qualified; "),
        *(
            (kind, "tokenizers", "0.24.0", "tokenizers 0.24.0 is installed, but 0.23.* is qualified; pip install")
            for kind in ("wordpiece_cased", "unigram", "byte_bpe", "bpe_fallback")
        ),
    ],
)
def test_a_package_that_is_missing_or_untried_is_a_reason_with_its_remedy(
    zoo: Zoo, kind: str, package: str, version: str | None, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_version(monkeypatch, package, version)
    chosen, reasons = _decide(zoo.tokenizer(kind))
    assert chosen.name == "hf"
    assert any(reason.startswith(cause) for reason in reasons.values())


@pytest.mark.parametrize(
    ("kind", "package"), [("byte_bpe", "fastokens"), ("bpe_fallback", "gigatoken"), ("bpe_fallback", "awkward")]
)
def test_a_package_that_cannot_be_imported_is_a_reason(
    zoo: Zoo, kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    chosen, reasons = _decide(zoo.tokenizer(kind))
    assert chosen.name == "hf"
    assert any("cannot open this tokenizer: " in reason and package in reason for reason in reasons.values())


@pytest.mark.parametrize("error", [ValueError("unsupported model type: X\nmore"), PanicException("out of bounds")])
def test_an_opener_that_fails_is_a_reason_and_logged(
    zoo: Zoo, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lying_engine, "open_lying", mock.Mock(side_effect=error))
    seams.put(monkeypatch, fast_engines={"fastokens": (lying_engine.__name__, "open_lying")})
    with caplog.at_level(logging.DEBUG, logger=choice.__name__):
        chosen, reasons = _decide(zoo.tokenizer("byte_bpe"))
    assert chosen.name == "hf"
    assert reasons == {"fastokens": f"it fails on this tokenizer: {str(error).splitlines()[0]}"}
    assert any(record.exc_info for record in caplog.records)


def test_an_engine_asked_for_by_name_is_refused_with_its_reason(zoo: Zoo) -> None:
    with pytest.raises(ConfigError, match=r"--engine gigatoken does not support this tokenizer: .*no byte fallback"):
        _decide(zoo.tokenizer("byte_bpe"), wanted="gigatoken")


@pytest.mark.parametrize("error", [ValueError("backtrack limit"), PanicException("out of bounds")])
@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_a_batch_on_which_a_package_fails_is_left_to_the_reference(name: str, error: BaseException) -> None:
    tokenizer = wrapped(byte_level() if name == "fastokens" else sentencepiece(["a"]))
    engine: Any = comparing.opened(name, tokenizer)
    fails = mock.Mock(side_effect=error)
    engine._backend = mock.Mock(encode_batch=fails, encode_batch_flat=fails)
    assert comparing.differing(engine, HuggingFaceEngine(tokenizer, dtype=INT32), ["a b", "\n", ""]) == []


def test_a_panic_of_the_reference_is_an_error_of_this_library() -> None:
    engine = HuggingFaceEngine(wrapped(byte_level(PANICS)), dtype=INT32)
    with pytest.raises(TextsNotEncoded, match="fails on one of 2 texts: AddedVocabulary bad split") as failed:
        engine.encode(pa.array(["a", "x\n\n"]))
    assert isinstance(failed.value, TokenizerError)


def test_a_tokenizer_that_fails_on_ordinary_texts_is_an_error_with_a_remedy(zoo: Zoo) -> None:
    tokenizer = altered_kind(zoo, unk_id=None, byte_fallback=False)
    with pytest.raises(TokenizerError, match="`unk_id` is missing") as failed:
        open_reference(tokenizer, dtype=INT32)
    assert "unknown token" in failed.value.remedy


def test_the_rows_on_which_the_tokenizer_panics_are_named() -> None:
    layout, columns = LayoutConfig(name="concat", max_length=8), ColumnPlan(texts=("text",))
    encoder = encoding.open_encoder(wrapped(byte_level(PANICS), pad_token="<pad>", eos_token="<pad>"), layout, columns)
    texts = pa.array(["one", "x\n\n", "two", "three", "and x \n\n"])
    rows = Rows(texts=(texts,), arrays={}, numbers=np.arange(10, 15))
    with pytest.raises(
        TokenizerError, match=r"rows 11, 14 of train: the tokenizer .*AddedVocabulary bad split"
    ) as failed:
        crosscheck.encode(encoder, rows, split="train")
    assert "--filter" in failed.value.remedy


def test_an_engine_that_gives_other_tokens_for_a_text_is_not_used(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    seams.put(monkeypatch, fast_engines={"wordpiece": (lying_engine.__name__, "open_lying")})
    tokenizer = zoo.tokenizer("wordpiece_cased")
    assert _decide(tokenizer)[0].name == "wordpiece"
    monkeypatch.setattr(lying_engine, "LIES", {next(filter(None, BATTERY))})
    chosen, reasons = _decide(tokenizer)
    assert isinstance(chosen, HuggingFaceEngine)
    assert reasons["wordpiece"].startswith("it gives other tokens than the tokenizer")
