"""Builds of chats with the example's tokenizer, and their texts and rejected rows."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from tests import building
from tests.building import read_rows


def trained() -> Path:
    return building.tokenizer("chats")


def build(output: Path, *, rows: list[dict[str, Any]], **changes: object) -> Path:
    """A build of the rows, in their order."""
    data = building.source(output.with_name(f"{output.name}-in"), train=rows)
    options = {"layout": "chat", "max_length": 64, "no_shuffle": True, "tokenizer": trained(), **changes}
    outcome = building.command("build", data, *building.options(output, **options))
    assert outcome.status == 0, outcome.err
    return output


def rejected(root: Path) -> dict[int, tuple[str, str | None]]:
    """Reason and detail of each row that was rejected."""
    written = b"".join(path.read_bytes() for path in sorted((root / "rejected").iterdir()))
    lines = [json.loads(line) for line in written.splitlines()]
    return {line["row"]: (line["reason"], line.get("detail")) for line in lines}


def texts(root: Path, *, mask: str = "attention_mask") -> list[str]:
    """Return each record's text where its mask is 1: everything except padding, or the learned part."""
    tokenizer, rows = AutoTokenizer.from_pretrained(root / "tokenizer"), read_rows(root, "train")
    return [
        tokenizer.decode(ids[chosen == 1].tolist(), clean_up_tokenization_spaces=False)
        for ids, chosen in zip(rows["input_ids"], rows[mask], strict=True)
    ]
