"""What people see of addresses with credentials, and of texts that are not ours."""

import pickle
import re
import sys
import traceback
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfrecord_io import shown
from tfrecord_io.errors import SourceError

SIGNED = "https://storage.example.com/b/train.parquet?X-Goog-Algorithm=RSA&X-Goog-Signature=hush"
TOKEN = "hf_" + "hushHUSH" * 4

TEXTS = {
    SIGNED: "https://storage.example.com/b/train.parquet?...",
    f"{SIGNED}: no such file": "https://storage.example.com/b/train.parquet?...: no such file",
    "https://host/x?hush": "https://host/x?...",
    "('https://host/x?sig=hush', 3)": "('https://host/x?...', 3)",
    "failed with url: /x.parquet?sig=hush (Caused by": "failed with url: /x.parquet?... (Caused by",
    "ftp://me:hush@host/file": "ftp://...@host/file",
    "https://hush@host/file": "https://...@host/file",
    "s3://KEY:hu/sh+hush=@bucket/file": "s3://...@bucket/file",
    "ftp://me:hu@sh@host/file": "ftp://...@host/file",
    "simplecache::https://me:hush@host/x?sig=hush": "simplecache::https://...@host/x?...",
    "az://box/file?sv=2024&sig=hush": "az://box/file?...",
    "aws_secret_access_key=hush": "aws_secret_access_key=...",
    "AccountKey=hush;": "AccountKey=...",
    "login with token=hush": "login with token=...",
    "{'token': 'hush', 'anon': False}": "{'token': '...', 'anon': False}",
    '{"refresh_token": "hush"}': '{"refresh_token": "..."}',
    "Authorization: Basic hush": "Authorization: ...",
    "{'Authorization': 'Bearer hush'}": "{'Authorization': '...'}",
    "lost: Bearer hush": "lost: ...",
    "lost: ya29.a0AfH6SM-hush": "lost: ...",
    f"token {TOKEN} is not valid": "token ... is not valid",
    f"https://user:{TOKEN}@huggingface.co/x": "https://...@huggingface.co/x",
}
HARMLESS = [
    "gs://bucket/part-?.parquet: no such file",
    "data/year=202?/*.parquet",
    "http://localhost:8080/users/@me",
    "hf://datasets/me/data@main/train.parquet",
    "gcloud ... --member=serviceAccount:me@project.iam.gserviceaccount.com --role=roles/storage.objectAdmin",
    "pad_token='<pad>', num_tokens=12, --tokenizer=bert-base-uncased",
    "is this hf_tokenizer? yes",
    "gs://bucket: cannot be read: me@example.com does not have storage.objects.get access",
]


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_what_grants_access_is_left_out(text: str, expected: str) -> None:
    assert shown.without_secrets(text) == expected
    assert shown.without_secrets(expected) == expected, "scrubbing twice is scrubbing once"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_grants_no_access_stays(text: str) -> None:
    assert shown.without_secrets(text) == text


@pytest.mark.parametrize("text", TEXTS)
def test_no_error_holds_a_secret_however_it_is_passed_on(text: str) -> None:
    error = SourceError(text, remedy=f"look at {text}")
    for one in (error, pickle.loads(pickle.dumps(error))):
        told = [str(one), repr(one), one.cause, one.remedy, *one.args, *traceback.format_exception(one)]
        assert "hush" not in "".join(told).lower()


def test_a_cause_that_shows_a_secret_is_not_kept() -> None:
    plain, telling = ValueError("no such column"), ValueError("wrapped")
    telling.__cause__ = OSError(SIGNED)
    assert shown.cause_without_secrets(plain) is plain
    assert shown.cause_without_secrets(telling) is None
    plain.__cause__, around = RuntimeError("x"), ValueError("y")
    plain.__cause__.__cause__, around.__cause__ = around, plain
    assert shown.cause_without_secrets(plain) is plain, "causes may run in a circle"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (SIGNED, "https://storage.example.com/b/train.parquet"),
        ("https://host/x.json?sig=a/b#c", "https://host/x.json"),
        ("simplecache::https://me:hush@host/x?s", "simplecache::https://host/x"),
        ("s3://key:hush@box/data/*.parquet?token=hush#x", "s3://box/data/*.parquet"),
        ("gs://box/part-?.parquet", "gs://box/part-?.parquet"),
        ("/local/what?a=b.jsonl", "/local/what?a=b.jsonl"),
    ],
)
def test_an_address_without_access_still_names_the_file(address: str, expected: str) -> None:
    assert shown.without_access(address) == expected


def test_control_characters_are_spelt_out_and_other_text_stays() -> None:
    assert shown.visible("\x1b[2J a\tb\r\n\x9b31m \u202etxt \x00\x7f") == r"\x1b[2J a\tb\r\n\x9b31m \u202etxt \x00\x7f"
    assert shown.visible("a\nb\r\n", lines=True) == "a\nb\\r\n"
    ordinary = "שלום, عالم 👩‍🔬 ﷽ naïve 日本 [/INST] :heart: \\x1b"
    assert shown.visible(ordinary) == ordinary


@given(st.text())
def test_nothing_that_is_shown_controls_a_terminal(text: str) -> None:
    for told in (shown.visible(text), shown.visible_line(text), str(SourceError(text)).replace("\n", "")):
        assert not [letter for letter in told if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")]
        assert not set(told) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def test_the_page_of_a_job_is_shown_with_its_project_and_nothing_more() -> None:
    page = "https://console.cloud.google.com/dataflow/jobs/us-central1/2030-01-01_00?project=some-project"
    assert shown.without_secrets(f"Dataflow job 1: {page}") == f"Dataflow job 1: {page}"
    assert shown.without_secrets(f"{page}&token=x") == f"{page.partition('?')[0]}?..."


def test_every_invisible_character_but_joiners_is_spelt_out() -> None:
    joiners, visible_signs = {"\u200c", "\u200d"}, re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2]")
    hidden = (chr(code) for code in range(sys.maxunicode))
    hidden = (letter for letter in hidden if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp"))
    hidden = (letter for letter in hidden if not "\U00011000" <= letter <= "\U00014000")  # Kaithi and hieroglyphs
    left = {letter for letter in hidden if shown.visible(letter) == letter}
    assert {letter for letter in left if not visible_signs.match(letter)} == joiners
    assert shown.visible("a\u200fb\u061cc\u200ed") == r"a\u200fb\u061cc\u200ed"


@pytest.mark.slow
def test_a_message_with_a_name_of_a_megabyte_is_bounded() -> None:
    error = SourceError(f"begin {'x' * 1_000_000} end", remedy="y" * 1_000_000)
    assert len(str(error)) < 20_000
    assert error.cause.startswith("begin xxx")
    assert error.cause.endswith("xxx end")
    again = pickle.loads(pickle.dumps(error))
    assert (again.cause, again.remedy) == (error.cause, error.remedy)
