"""The ready functions: each rule at its threshold, and n-grams against a plain Python form."""

import collections
import hashlib
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines import filters
from tests import building

STOPS = "the and with that"


def kept(function: str, *texts: str | None, arguments: Sequence[object] = ()) -> list[bool]:
    return np.asarray(getattr(filters, function)(pa.table({"text": pa.array(texts, pa.string())}), *arguments)).tolist()


def words(count: int, word: str = "plain", rest: str = STOPS) -> str:
    return " ".join([rest, *[f"{word}{chr(97 + at % 26)}" for at in range(count - len(rest.split()))]])


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (words(50), words(49)),
        (words(50, "longwordn"), words(50, "longwordnnnn")),
        (words(50) + " #" * 5, words(50) + " #" * 6),
        (words(50) + " w...x" * 5, words(50) + " w...x" * 6),
        ("one\n" + "\n".join("- " + words(10) for _ in range(9)), "\n".join("- " + words(10) for _ in range(10))),
        (words(80) + " 1" * 20, words(80) + " 1" * 21),
        (words(50), words(50, rest="the plain")),
    ],
    ids=["words", "length", "hashes", "ellipses", "bullets", "letters", "stop words"],
)
def test_gopher_quality_keeps_what_is_within_each_bound(inside: str, outside: str) -> None:
    assert kept("gopher_quality", inside, outside) == [True, False]


def test_c4_counts_sentences_of_good_lines_only() -> None:
    line = "It is a good line."
    assert kept(
        "c4_quality",
        "\n".join([line] * 5),
        "\n".join([line] * 4),
        "\n".join([line] * 4 + ["no mark at its end"]),
        "\n".join([line] * 4 + ["Enable Javascript to see it."]),
        "\n".join([line] * 4 + ["Too short."]),
        "\n".join([line] * 5 + ["Lorem ipsum dolor sit amet."]),
        "\n".join([line] * 5 + ["It has a { in it."]),
        "",
    ) == [True, False, False, False, False, False, False, False]


def plain_repetition(text: str) -> bool:
    """The rules of table A1 as a loop."""

    def repeated(parts: list[str]) -> tuple[int, int]:
        again = [part for at, part in enumerate(parts) if part in parts[:at]]
        return len(again), sum(map(len, again))

    if not text:
        return False
    lines, blocks = re.split("\n+", text), re.split("\n{2,}", text.strip())
    for parts in (lines, blocks):
        number, characters = repeated(parts)
        if number / len(parts) > 0.3 or characters / len(text) > 0.2:
            return False
    all_words = text.split()
    for n, most in ((2, 0.2), (3, 0.18), (4, 0.16)):
        grams = [" ".join(all_words[at : at + n]) for at in range(len(all_words) - n + 1)]
        if grams:
            gram, count = collections.Counter(grams).most_common(1)[0]
            if len(gram) * count / len(text) > most:
                return False
    for n in range(5, 11):
        seen, characters, at = set(), 0, 0
        while at + n <= len(all_words):
            found = tuple(all_words[at : at + n])
            characters += sum(map(len, found)) if found in seen else 0
            at += n if found in seen else 1
            seen.add(found)
        if characters / len(text) > 0.20 - n / 100:
            return False
    return True


def test_gopher_repetition_is_that_of_a_plain_loop() -> None:
    draw = random.Random(3)
    texts = ["", " ", "a"]
    for _ in range(1_000):
        vocabulary = [f"w{number}" for number in range(draw.choice([3, 20, 200]))]
        line = [draw.choice(vocabulary) for _ in range(draw.randint(1, 120))]
        copied = line[: draw.randint(0, 30)] if draw.random() < 0.5 else []
        all_words = line + copied
        for at in range(9, len(all_words), 10):
            all_words[at] += draw.choice(["", "\n", "\n\n"]) if draw.random() < 0.3 else ""
        texts.append(" ".join(all_words).replace("\n ", "\n"))
    expected = [plain_repetition(text) for text in texts]
    assert 100 < sum(expected) < len(expected) - 100
    assert kept("gopher_repetition", *texts) == expected


@pytest.mark.parametrize("ready", [filters.gopher_repetition, filters.gopher_quality, filters.c4_quality])
@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a b"], ["a b c d e f"], ["", "a b", ""]])
def test_batches_may_have_no_rows_or_fewer_words_than_an_n_gram(ready: Any, texts: list[str]) -> None:
    table = pa.table({"text": pa.chunked_array([texts] if texts else [], pa.string())})
    assert len(ready(table)) == len(texts)


def test_length_counts_characters() -> None:
    assert kept("length", "a", "äö", "abc", None, arguments=(2, 2)) == [False, True, False, False]


def test_language_keeps_one_language() -> None:
    english, german = (
        "This is a sentence about the weather in the north.",
        "Das ist ein Satz über das Wetter im Norden.",
    )
    assert kept("language", english, german, "", arguments=("de",)) == [False, True, False]


def test_addresses_are_masked_and_other_numbers_stay() -> None:
    table = pa.table({"text": ["write to a.b@c.org or 8.8.8.8", "10.0.0.1 and 1.2.3, at @home", None]})
    masked = ["write to email@example.com or 22.214.171.124", "10.0.0.1 and 1.2.3, at @home", None]
    assert filters.mask_pii(table)["text"].to_pylist() == masked


def test_mojibake_is_repaired_and_nothing_is_normalized() -> None:
    table = pa.table({"n": [1, 2], "text": ["schÃ¶n", "ﬁne “quotes”"]})
    fixed = filters.fix_text(table)
    assert fixed["text"].to_pylist() == ["schön", "ﬁne “quotes”"]
    assert fixed.schema == table.schema


def test_a_build_counts_what_each_ready_filter_left_out_by_name() -> None:
    root = building.reviews(map="mask_pii", filter=("length(20, 60)", "language(en, at_least=0.9)"))
    reasons = building.read_manifest(root).splits["train"].ledger.left_out
    assert list(reasons) == ["filtered:language", "filtered:length"]
    assert all(reasons.values())
    shown = building.command("inspect", root)
    assert f"filtered:length {reasons['filtered:length']}" in shown.out, shown.err


@pytest.mark.parametrize("spec", ["gopher", "mask_pii", "length(", "c4_quality()x"])
def test_an_unknown_name_is_refused_with_those_there_are(spec: str) -> None:
    outcome = building.command("plan", building.REVIEWS, "--tokenizer", building.tokenizer(), "--filter", spec)
    assert "gopher_quality, gopher_repetition" in outcome.error[0]


def test_a_column_is_named_where_it_is_not_text() -> None:
    table = pa.table({"body": ["abc"]})
    assert filters.length(table, 3, column="body").to_pylist() == [True]
    with pytest.raises(ValueError, match="column="):
        filters.length(table, 3)


# Digests of each function's results for `golden_texts`: if one changes, raise the function's number in `_VERSIONS`.
GOLDEN = {
    "c4_quality": "4171df4cc9ce18f1",
    "gopher_quality": "bbfb184d61863e0c",
    "gopher_repetition": "61a5d534b1731fe8",
    "length": "becad8fc47b464d7",
    "mask_pii": "d7260c9960369bdf",
}


def golden_texts() -> list[str]:
    draw = random.Random(5)
    words = [
        "the",
        "of",
        "and",
        "Paris",
        "…",
        "#",
        "•",
        "javascript",
        "a@b.example",
        "10.0.0.1",
        "8.8.8.8",
        "words",
        "{",
        "1",
    ]
    ends = [".", "!", "\n", "...", "\n\n", '"', " policy\n", "?\n- ", "\r\n", "\u2028"]
    return [
        "".join(f"{draw.choice(words)}{draw.choice(ends) if draw.random() < 0.2 else ' '}" for _ in range(size))
        for size in (0, 1, 3, 10, 40, 60, 120, 250, 600)
        for _ in range(12)
    ] + ["One good sentence of the story and of you. " * 20, "lorem ipsum dolor. " * 9]


@pytest.mark.parametrize("name", GOLDEN)
def test_what_a_ready_function_gives_has_a_version(name: str) -> None:
    arguments = {"length": (20, 900)}.get(name, ())
    result = getattr(filters, name)(pa.table({"text": golden_texts()}), *arguments)
    values = result["text"].to_pylist() if isinstance(result, pa.Table) else np.asarray(result).tolist()
    assert sum(map(bool, values)) > 0 or name == "gopher_repetition"
    assert hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16] == GOLDEN[name]
    assert filters.version(name) == "1"
