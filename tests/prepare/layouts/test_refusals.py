"""What no layout takes: options that mean nothing there."""

from pathlib import Path
from typing import Any

import pytest

from tests import building

EXAMPLES = building.REPOSITORY / "examples"
PACK: dict[str, Any] = {"layout": "pack", "max_length": 64, "split": "train"}
CHAT = {"layout": "chat", "max_length": 256, "tokenizer": building.tokenizer}
SEQ2SEQ = {"layout": "seq2seq", "text_column": "en", "target_column": "de", "target_length": 16}


@pytest.mark.parametrize(
    ("example", "options", "cause"),
    [
        ("reviews", {**PACK, "text_column": ("text", "other")}, "two text columns"),
        ("reviews", {**PACK, "label_column": "label"}, "--layout pack with --label-column or --keep-column"),
        ("reviews", {**PACK, "keep_column": "label"}, "--layout pack with --label-column or --keep-column"),
        ("reviews", {**PACK, "remainder": "drop"}, "--remainder"),
        ("reviews", {"layout": "concat", "long_documents": "drop"}, "--long-documents"),
        ("reviews", {"layout": "pad", "target_column": "de"}, "--target-column was given with --layout pad"),
        ("reviews", {"layout": "qa"}, "--layout qa with only one text column, 'text'"),
        ("reviews", {"stride": 4, "text_column": ("a", "b")}, "two text columns"),
        ("reviews", {"stride": 4, "truncation": "do_not_truncate"}, "--stride with --truncation"),
        ("chats", {**CHAT, "text_column": "messages"}, "--text-column"),
        ("chats", {**CHAT, "pack_rows": True, "label_column": "x"}, "--pack-rows with --label-column or --keep-column"),
        ("chats", {**CHAT, "pack_rows": True, "keep_column": "n"}, "--pack-rows with --label-column or --keep-column"),
        ("chats", {**CHAT, "chat_date": "2024-02-30"}, "--chat-date '2024-02-30', expected a date"),
        ("chats", {**CHAT, "messages_column": "talk"}, "no column 'talk'"),
        ("translations", {**SEQ2SEQ, "target_column": None}, "--layout seq2seq without --target-column"),
        ("translations", {**SEQ2SEQ, "target_column": "fr"}, "no column 'fr'"),
        ("translations", {**SEQ2SEQ, "target_column": "en"}, "column 'en' is used more than once"),
        ("translations", {**SEQ2SEQ, "target_length": 2}, "--target-length 2 leaves no room for text: each target"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, example: str, options: dict[str, Any], cause: str
) -> None:
    if options.get("tokenizer"):
        options = {**options, "tokenizer": building.tokenizer(example)}
    outcome = building.command("build", EXAMPLES / example, *building.options(tmp_path / "out", **options))
    assert cause in outcome.error[0]
    assert not (tmp_path / "out").exists()
