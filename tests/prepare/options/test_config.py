"""A request is validated once, when it is created. Each error names the expected value and the remedy."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.option_fields import declared
from pipelines.prepare.options.config import (
    LayoutConfig,
    OutputConfig,
    PrepareConfig,
    SourceConfig,
    TokenizerConfig,
    default_name,
    parse_size,
)
from pipelines.prepare.options.suggestions import against_padding
from tfrecord_io.errors import ConfigError


def _source(**options: Any) -> SourceConfig:
    return SourceConfig(**{"dataset": "data", **options})


def _output(**options: Any) -> OutputConfig:
    return OutputConfig(**{"root": "out", "name": "name", **options})


def _request(**options: Any) -> PrepareConfig:
    parts = {"source": _source(), "tokenizer": TokenizerConfig(name="tokenizer"), "output": _output(), **options}
    return PrepareConfig(**parts)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("5000", 5000), ("1B", 1), ("1 kB", 1000), ("100MB", 10**8), ("2GB", 2 * 10**9), ("1.5mb", 1_500_000)),
        *(("64MiB", 64 << 20), ("1KiB", 1024), ("1gib", 1 << 30), (" 10 MB ", 10**7), ("0.1B", 1), ("0.5KiB", 512)),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "0", "0.0MB", "1TB", "1e6", "ten", "1 M B", "1,5MB", "nan", "inf", "1MB2"]
)
def test_what_is_no_size_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"positive number with one of the units.*--shard-size 100MB") as caught:
        parse_size(text)
    assert repr(text) in caught.value.cause


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _source(dataset=""), "DATASET is empty"),
        (lambda: _source(text_columns=()), "0 text columns, expected one, or two for pairs"),
        (lambda: _source(text_columns=("a", "b", "c")), "3 text columns"),
        (lambda: _source(limit=0), "--limit 0, expected at least 1"),
        (lambda: _source(text_columns=("a", "a")), "column 'a' is used more than once"),
        (lambda: _source(label_column="text"), "column 'text' is used more than once"),
        (lambda: _source(keep_columns=("a", "a")), "used more than once"),
        (lambda: TokenizerConfig(name=""), "tokenizer's name is empty.*--tokenizer NAME_OR_DIR"),
        (lambda: LayoutConfig(name="other"), "layout 'other', expected one of"),  # type: ignore[arg-type]
        (lambda: LayoutConfig(max_length=0), "--max-length 0, expected at least 1"),
        (lambda: LayoutConfig(max_length=10**9), "--max-length 1000000000, expected at most 4194304.*such as 128"),
        (lambda: LayoutConfig(max_length=10**400), r"--max-length of 10\^18 or more, expected at most"),
        (lambda: LayoutConfig(name="seq2seq", target_length=-1), "--target-length -1, expected at least 1"),
        (lambda: LayoutConfig(name="seq2seq", target_length=10**8), "--target-length 100000000, expected at most"),
        (lambda: LayoutConfig(bucket_lengths="64,1000000000"), "--bucket-lengths 64,1000000000, expected at most"),
        (lambda: LayoutConfig(bucket_lengths="-5,64"), "-5,64, expected ascending lengths of at least 1"),
        (lambda: LayoutConfig(stride=-1), "--stride -1, expected at least 0"),
        (lambda: LayoutConfig(stride=64, max_length=64), "--stride 64 with --max-length 64, expected a smaller"),
        (lambda: LayoutConfig(remainder="drop"), "with --layout pad, but works only with --layout concat"),
        (lambda: LayoutConfig(special_tokens="none"), "with --layout pad, but works only with --layout concat"),
        (lambda: LayoutConfig(name="concat", truncation="only_first"), "--truncation was given with --layout concat"),
        (lambda: LayoutConfig(name="pack", bucket_lengths="8,16"), "--bucket-lengths was given with --layout pack"),
        (lambda: LayoutConfig(bucket_lengths="8,16", stride=2), "--stride with --truncation or --bucket-lengths"),
        (lambda: _output(root=""), "--output is empty"),
        (lambda: _output(name="../up"), "--name '../up', expected letters"),
        (lambda: _output(name=".hidden"), "beginning with a letter, a digit or '_'"),
        (lambda: _output(name="new\nline"), "expected letters"),
        (lambda: _output(shard_bytes=0), "--shard-size 0, expected at least 1"),
        (lambda: _output(shard_bytes=10**15), "--shard-size 1000000000000000, expected at most 100000000000"),
        (
            lambda: _output(shard_bytes=parse_size("9" * 400 + "GB")),
            r"--shard-size of 10\^18 or more, expected at most",
        ),
        (lambda: _request(seed=-1), "--seed -1, expected at least 0"),
        (lambda: _request(max_error_rate=1.1), "--max-error-rate 1.1, expected at most 1"),
        (lambda: _request(max_error_rate=float("nan")), "--max-error-rate nan"),
        (lambda: _request(workers=0), "--workers 0, expected at least 1"),
        (lambda: _request(workers=10**6), "--workers 1000000, expected at most 1024.*leave --workers out"),
    ],
)
def test_each_mistake_has_its_message(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_without_a_name_the_dataset_gives_it() -> None:
    request = _request(source=_source(dataset="stanfordnlp/imdb"), output=OutputConfig(root="out"))
    assert request.output == OutputConfig(root="out", name="imdb")


@pytest.mark.parametrize("name", ["imdb", "a-b_c+1.0", "0", "_x"])
def test_names_that_can_be_file_names_are_taken(name: str) -> None:
    assert _output(name=name).name == name


def test_a_request_cannot_be_changed_and_travels() -> None:
    request = _request()
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.seed = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(request)) == request


def test_these_options_decide_the_bytes() -> None:
    # An option that is added here, or renamed, makes every unfinished and finished output another one.
    assert _request().fingerprint_options() == {
        "text_columns": ["text"],
        "label_column": None,
        "keep_columns": [],
        "layout": "pad",
        "truncation": "longest_first",
        "truncation_side": None,
        "padding_side": None,
        "remainder": "pad",
        "name": "name",
        "shard_bytes": 100_000_000,
        "compression": "none",
        "seed": 0,
        "shuffle": True,
    }


def test_these_options_decide_the_bytes_only_where_they_are_given() -> None:
    """A dataset built before such an option existed keeps its fingerprint."""
    configs = (SourceConfig, TokenizerConfig, LayoutConfig, OutputConfig, PrepareConfig)
    every = [option for config in configs for option in declared(config) if option.fingerprint == "changed"]
    assert sorted(option.key or option.field for option in every) == [
        *("answers_column", "bucket_lengths", "chat_date", "chat_options", "chat_template", "chosen_column"),
        "completion_column",
        *("dedup", "dedup_across_splits", "fim_rate", "fim_spm_rate", "fim_tokens", "input_prefix"),
        *("label_all_tokens", "label_classes", "learn", "learn_not", "learn_whole_turns", "long_documents"),
        *("messages_column", "most_documents", "pack_rows", "prompt_column", "rejected_column", "segments"),
        *("special_tokens", "stride", "system_column", "tags_column", "target_column", "target_length", "tools_column"),
        "words_column",
    ]
    decisive = _request(layout=LayoutConfig(name="concat", special_tokens="bos-eos")).fingerprint_options()
    assert decisive["special_tokens"] == "bos-eos"


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        *(("imdb", "imdb"), ("user/My.Data", "My"), ("/data/reviews/train.jsonl.gz", "train")),
        *(("/data/reviews/*.parquet", "reviews"), ("data/**/*.csv", "data"), ("gs://bucket/folder/", "folder")),
        *(("C:\\data\\set.csv", "set"), ("./über cool", "_ber_cool")),
        *((dataset, "dataset") for dataset in ("*.csv", "..", "")),
    ],
)
def test_the_default_name_is_the_last_plain_part_of_the_dataset(dataset: str, name: str) -> None:
    assert default_name(dataset) == name
    assert _output(name=default_name(dataset)).name == name


@pytest.mark.parametrize(
    "layout",
    [
        *({}, {"stride": 5}, {"bucket_lengths": (8, 16)}, {"truncation": "do_not_truncate"}),
        *({"name": "chat"}, {"name": "chat", "pack_rows": True}, {"name": "concat"}, {"name": "pack"}),
        *({"name": "tokens"}, {"name": "qa", "stride": 5}, {"name": "seq2seq"}),
    ],
)
@pytest.mark.parametrize(
    "source", [{}, {"label_column": "label"}, {"keep_columns": ("id",)}, {"text_columns": ("text", "other")}]
)
def test_what_is_advised_against_padding_goes_with_the_other_options(
    source: dict[str, Any], layout: dict[str, Any]
) -> None:
    if layout.get("name") == "seq2seq":
        source = {**source, "target_column": "target"}
    try:
        request = _request(source=_source(**source), layout=LayoutConfig(**layout))
    except ConfigError:
        return  # this dataset cannot be made
    advice = against_padding(request.fingerprint_options())
    advised: dict[str, dict[str, Any]] = {
        "--pack-rows": {"pack_rows": True},
        "--layout pack": {"name": "pack"},
        "--bucket-lengths auto:4": {"bucket_lengths": "auto:4"},
    }
    for way, changed in advised.items():
        if way in advice:
            _request(source=_source(**source), layout=LayoutConfig(**{**layout, **changed}))
    if not (source or layout):
        assert all(way in advice for way in list(advised)[1:])
