"""The example that the quickstart shows to everybody: its rows are sound and its tokenizer fits them."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
from collections.abc import Callable

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests import building

REPOSITORY = pathlib.Path(__file__).parents[2]
FOLDER = REPOSITORY / "examples" / "reviews"
# The examples that have a tokenizer of their own; the reviews' serves all others.
OWN = ("chats", "reviews", "translations")
# Examples that go the whole way from raw text, with a tokenizer of `prep-tfrecords tokenizer`: see test_guide.py.
WHOLE = ("acceptability", "masked_lm")
SHOWN = [
    *(path for path in sorted((REPOSITORY / "examples").glob("*/README.md")) if path.parent.name not in WHOLE),
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "start" / "first-dataset.md",
    REPOSITORY / "scripts" / "quickstart",
]
ROWS = {"train": 320, "validation": 80}


def read(split: str) -> list[dict[str, str]]:
    """The rows of one split, with each line decoded strictly."""
    text = (FOLDER / f"{split}.jsonl").read_bytes().decode("utf-8", errors="strict")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def words(text: str) -> frozenset[str]:
    """What is left of a text without case, punctuation and order: equal for near-duplicates."""
    return frozenset(re.findall(r"\w+", text.lower()))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(str(building.tokenizer()), local_files_only=True)


@pytest.mark.parametrize("split", ROWS)
def test_every_row_has_a_text_and_one_of_two_labels(split: str) -> None:
    rows = read(split)
    assert len(rows) == ROWS[split]
    for row in rows:
        assert row.keys() == {"text", "label"}
        assert row["text"] == row["text"].strip()
        assert 3 <= len(row["text"].split()) <= 120
        assert row["label"] in {"negative", "positive"}


@pytest.mark.parametrize("split", ROWS)
def test_labels_are_balanced_within_ten_percent(split: str) -> None:
    labels = collections.Counter(row["label"] for row in read(split))
    assert abs(labels["negative"] - labels["positive"]) <= 0.1 * ROWS[split]


def test_no_two_reviews_have_the_same_words() -> None:
    bags = collections.Counter(words(row["text"]) for split in ROWS for row in read(split))
    assert [sorted(bag) for bag, count in bags.items() if count > 1] == []


def test_no_validation_review_is_nearly_a_train_review() -> None:
    train = [words(row["text"]) for row in read("train")]
    for row in read("validation"):
        bag = words(row["text"])
        closest = max(len(bag & other) / len(bag | other) for other in train)
        assert closest < 0.6, f"{row['text']!r} shares {closest:.0%} of its words with a train review"


def test_the_reviews_exercise_more_than_ascii() -> None:
    text = "".join(row["text"] for row in read("train"))
    assert re.search("[à-ÿ]", text)
    assert re.search("[一-鿿]", text)
    assert re.search("[\U0001f300-\U0001faff]", text)


@pytest.mark.slow
@pytest.mark.parametrize("example", OWN)
def test_a_tokenizer_script_writes_the_same_bytes_in_every_process(example: str, tmp_path: pathlib.Path) -> None:
    script = REPOSITORY / "examples" / example / "train_tokenizer.py"
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=True, capture_output=True)
    assert building.files(tmp_path) == building.files(building.tokenizer(example))
    assert (tmp_path / "tokenizer.json").exists()


def test_the_tokenizer_lays_out_pairs_as_bert_does(tokenizer: PreTrainedTokenizerBase) -> None:
    encoded = tokenizer("Great FILM", "so bad")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == [
        *("[CLS]", "great", "film", "[SEP]"),
        *("so", "bad", "[SEP]"),
    ]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert encoded["attention_mask"] == [1] * 7


def test_the_tokenizer_knows_its_special_tokens_and_limit(tokenizer: PreTrainedTokenizerBase) -> None:
    special = [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id]
    assert [*special, tokenizer.mask_token_id] == [0, 1, 2, 3, 4]
    assert len(tokenizer.all_special_tokens) == 5
    assert len(tokenizer) == 2000
    assert tokenizer.model_max_length == 128


def test_few_validation_tokens_are_unknown(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = [
        token_id
        for row in read("validation")
        for token_id in tokenizer(row["text"], add_special_tokens=False, truncation=True)["input_ids"]
    ]
    assert ids.count(tokenizer.unk_token_id) / len(ids) < 0.05


def main_of(example: str) -> Callable[[list[str]], int]:
    """The command line of an example's script."""
    script = REPOSITORY / "examples" / example / "train_tokenizer.py"
    found: Callable[[list[str]], int] = runpy.run_path(str(script))["main"]
    return found


@pytest.mark.parametrize("example", OWN)
def test_each_tokenizer_has_a_folder_of_its_own(
    example: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main_of(example)([]) == 0
    assert [path.name for path in (tmp_path / "out" / "tokenizers").iterdir()] == [example]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_that_we_show_takes_the_tokenizer_of_its_example(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    builds = re.findall(r"prep-tfrecords build examples/(\w+) .*--tokenizer (\S+)", text)
    trained = re.findall(r"python examples/(\w+)/train_tokenizer.py (\S+)", text)
    assert builds
    for example, folder in builds:
        assert trained == [(example if example in OWN else "reviews", folder)]
        assert folder == f"out/tokenizers/{trained[0][0]}"


@pytest.mark.parametrize("arguments", [["a", "b"], ["--out"]])
def test_the_script_refuses_what_is_no_folder(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of("reviews")(arguments) == 2
    assert "usage:" in capsys.readouterr().err
