"""Wrote train.jsonl, validation.jsonl and test.jsonl of this folder: `python examples/acceptability/make_data.py`.

Sentences of a small English grammar, half of them with one mistake: a verb that does not agree with its subject, a
pronoun that does not agree with what it stands for, or two neighbouring words that changed places. The label says
whether a sentence is acceptable, as in the Corpus of Linguistic Acceptability; no sentence is in two splits. The labels
of the test split are -1, as in the data of the GLUE benchmark; `splits()` gives the true ones too.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

HERE = pathlib.Path(__file__).parent
# Each noun with its plural and its pronoun.
NOUNS = (
    ("girl", "girls", "herself"),
    ("boy", "boys", "himself"),
    ("woman", "women", "herself"),
    ("man", "men", "himself"),
    ("queen", "queens", "herself"),
    ("king", "kings", "himself"),
    ("sister", "sisters", "herself"),
    ("brother", "brothers", "himself"),
    ("mother", "mothers", "herself"),
    ("father", "fathers", "himself"),
)
ADJECTIVES = ("old", "young", "tall", "quiet", "clever", "friendly", "tired", "famous")
VERBS = (
    ("sees", "see"),
    ("likes", "like"),
    ("helps", "help"),
    ("knows", "know"),
    ("follows", "follow"),
    ("calls", "call"),
)
PLACES = ("in the garden", "at the station", "near the river", "on the bridge", "after dinner", "in the morning")
SIZES = {"train": 1600, "validation": 200, "test": 200}


def splits() -> dict[str, list[dict[str, Any]]]:
    """The rows of each split, with true labels."""
    rng = random.Random(0)
    seen: set[str] = set()
    found = {}
    for split, size in SIZES.items():
        found[split] = [_row(rng, seen, acceptable=index % 2 == 0) for index in range(size)]
        rng.shuffle(found[split])
    return found


def main() -> None:
    for split, rows in splits().items():
        shown = [{**row, "label": -1} for row in rows] if split == "test" else rows
        lines = "".join(json.dumps(row) + "\n" for row in shown)
        (HERE / f"{split}.jsonl").write_text(lines, encoding="utf-8")


def _row(rng: random.Random, seen: set[str], *, acceptable: bool) -> dict[str, Any]:
    while True:
        sentence = _sentence(rng, mistake=None if acceptable else rng.choice(("verb", "pronoun", "order")))
        if sentence not in seen:
            seen.add(sentence)
            return {"sentence": sentence, "label": int(acceptable)}


def _sentence(rng: random.Random, *, mistake: str | None) -> str:
    plural = rng.random() < 0.5
    noun, nouns, own_pronoun = rng.choice(NOUNS)
    singular_verb, plural_verb = rng.choice(VERBS)
    subject = ["the", rng.choice(ADJECTIVES), nouns if plural else noun]
    verb = plural_verb if plural is not (mistake == "verb") else singular_verb
    pronoun = "themselves" if plural is not (mistake == "pronoun") else own_pronoun
    object_ = ["the", rng.choice(rng.choice(NOUNS)[:2])]
    middle = ["and", "enjoy" if plural else "enjoys", pronoun] if rng.random() < 0.5 or mistake == "pronoun" else []
    words = [*subject, verb, *object_, *middle, *rng.choice(PLACES).split()]
    if mistake == "order":
        at = rng.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    return " ".join(words).capitalize() + "."


if __name__ == "__main__":
    main()
