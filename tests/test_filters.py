"""The ready functions; golden digests pin their results."""

import hashlib
import ipaddress
import json
import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from pipelines import filters
from tests import building


def kept(function: str, *texts: str | None, arguments: Sequence[object] = ()) -> list[bool]:
    return np.asarray(getattr(filters, function)(pa.table({"text": pa.array(texts, pa.string())}), *arguments)).tolist()


def test_length_counts_characters() -> None:
    assert kept("length", "a", "äö", "abc", None, arguments=(2, 2)) == [False, True, False, False]


def test_language_keeps_one_language() -> None:
    english, german = "This is a sentence about the weather.", "Das ist ein Satz über das Wetter im Norden."
    assert kept("language", english, german, "", arguments=("de",)) == [False, True, False]


def test_addresses_are_masked_and_other_numbers_stay() -> None:
    table = pa.table({"text": ["write to a.b@c.org or 8.8.8.8", "10.0.0.1 and 1.2.3, at @home", None]})
    masked = ["write to email@example.com or 22.214.171.124", "10.0.0.1 and 1.2.3, at @home", None]
    assert filters.mask_pii(table)["text"].to_pylist() == masked


@pytest.mark.parametrize(
    ("first", "last"),
    [
        *(("0.0.0.0", "0.255.255.255"), ("10.0.0.0", "10.255.255.255"), ("100.64.0.0", "100.127.255.255")),
        *(("127.0.0.0", "127.255.255.255"), ("169.254.0.0", "169.254.255.255"), ("172.16.0.0", "172.31.255.255")),
        *(("192.0.0.0", "192.0.0.8"), ("192.0.0.11", "192.0.0.255"), ("192.0.2.0", "192.0.2.255")),
        *(("192.168.0.0", "192.168.255.255"), ("198.18.0.0", "198.19.255.255"), ("198.51.100.0", "198.51.100.255")),
        *(("203.0.113.0", "203.0.113.255"), ("240.0.0.0", "255.255.255.255")),
    ],
)
def test_addresses_at_borders_of_private_networks_stay_and_their_neighbours_are_masked(first: str, last: str) -> None:
    low, high = int(ipaddress.ip_address(first)), int(ipaddress.ip_address(last))
    inside = [first, last]
    outside = [str(ipaddress.ip_address(at)) for at in (low - 1, high + 1) if 0 <= at < 1 << 32]
    masked = filters.mask_pii(pa.table({"text": [*inside, *outside]}))["text"].to_pylist()
    assert masked == [*inside, *["22.214.171.124"] * len(outside)]


def test_mojibake_is_repaired_and_nothing_is_normalized() -> None:
    table = pa.table({"n": [1, 2], "text": ["schÃ¶n", "ﬁne “quotes”"]})
    fixed = filters.fix_text(table)
    assert fixed["text"].to_pylist() == ["schön", "ﬁne “quotes”"]
    assert fixed.schema == table.schema


def test_a_build_counts_what_each_ready_filter_left_out_by_name() -> None:
    root = building.reviews(map="mask_pii", filter=("length(20, 60)", "language(en, at_least=0.9)"))
    reasons = building.read_manifest(root).splits["train"].ledger.filtered
    assert list(reasons) == ["filtered:language", "filtered:length"]
    assert all(reasons.values())
    shown = building.command("inspect", root)
    assert f"filtered:length {reasons['filtered:length']}" in shown.out, shown.err


@pytest.mark.parametrize("spec", ["gopher", "mask_pii", "length(", "length()x"])
def test_an_unknown_name_is_refused_with_those_there_are(spec: str) -> None:
    outcome = building.command("plan", building.REVIEWS, "--tokenizer", building.tokenizer(), "--filter", spec)
    assert "language, length" in outcome.error[0]


def test_a_column_is_named_where_it_is_not_text() -> None:
    table = pa.table({"body": ["abc"]})
    assert filters.length(table, 3, column="body").to_pylist() == [True]
    with pytest.raises(ValueError, match="column="):
        filters.length(table, 3)


# Digests of each function's results for `golden_texts`: if one changes, raise the function's number in `_VERSIONS`.
GOLDEN = {"length": "becad8fc47b464d7", "mask_pii": "d7260c9960369bdf"}


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
    assert sum(map(bool, values)) > 0
    assert hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16] == GOLDEN[name]
    assert filters.version(name) == {"mask_pii": "2"}.get(name, "1")
