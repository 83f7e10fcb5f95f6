"""If a table has no column `text`, the build's error suggests the option that fits the table."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests import building

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]


@pytest.mark.parametrize(
    ("row", "remedy"),
    [
        ({"review": "fine", "stars": 3}, "name its text with --text-column review"),
        ({"title": "a", "body": "b"}, "choose among its columns: title, body; name its text with --text-column NAME"),
        ({"txt": "fine", "id": "a"}, "did you mean 'txt'? choose among its columns: txt, id"),
        ({"messages": TURNS}, "chats of the form messages (messages): add --layout chat"),
        ({"conversations": SHAREGPT}, "chats of the form ShareGPT (conversations): add --layout chat"),
        ({"instruction": "say hi", "input": "", "output": "hi"}, "Alpaca (instruction, output): add --layout chat"),
        ({"prompt": "hi", "completion": "hello"}, "prompt and completion (prompt, completion): add --layout chat"),
        ({"prompt": "hi", "chosen": TURNS, "rejected": TURNS}, "preference pairs: add --layout preference"),
    ],
    ids=["csv", "two texts", "typo", "messages", "ShareGPT", "Alpaca", "completion", "preference"],
)
def test_the_option_is_named(tmp_path: Path, row: dict[str, Any], remedy: str) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    cause, advice = building.command("build", tmp_path / "train.jsonl", *building.options(tmp_path / "out")).error
    assert cause == "split 'train' has no column 'text'"
    assert remedy in advice


@pytest.mark.parametrize("columns", [[], ["image.path"]], ids=["no option", "names of files"])
def test_images_are_not_prepared(tmp_path: Path, columns: list[str]) -> None:
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": b"x", "path": "a.png"}], "label": [1]}
    datasets.Dataset.from_dict(rows, features=kinds).to_parquet(tmp_path / "train.parquet")
    options = building.options(tmp_path / "out", text_column=tuple(columns) or None)
    cause, remedy = building.command("build", tmp_path / "train.parquet", *options).error
    assert "expected text" in cause or "no column 'text'" in cause
    assert remedy.startswith("images, audio and video are not prepared")
