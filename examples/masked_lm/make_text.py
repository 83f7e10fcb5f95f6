"""Writes the text of this example: `python examples/masked_lm/make_text.py OUT.jsonl`.

Facts of a small world: which animal lives where and makes which sound, and which day follows which. A model that has
read them can fill a gap, and whether it is right can be checked (`check.py`). The same bytes each time; 10,000
documents of two sentences, 0.6 MB.
"""

from __future__ import annotations

import json
import pathlib
import random
import re
import sys
from collections.abc import Sequence

ANIMALS = {
    "cow": ("field", "moo"),
    "cat": ("house", "meow"),
    "dog": ("kennel", "woof"),
    "owl": ("forest", "hoot"),
    "duck": ("pond", "quack"),
    "frog": ("swamp", "croak"),
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SAYINGS = ("The {animal} lives in the {home}.", "The {animal} says {sound}.")
ORDER = "{second} comes after {first}."
WORDS = sorted(
    {*ANIMALS, *(word for facts in ANIMALS.values() for word in facts), *DAYS}
    | set(re.findall(r"[A-Za-z]+", re.sub(r"{.*?}", "", " ".join((*SAYINGS, ORDER)))))
)
DOCUMENTS = 10_000


def main(arguments: Sequence[str]) -> int:
    """The command line: one argument, the file to write."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python examples/masked_lm/make_text.py OUT.jsonl", file=sys.stderr)
        return 2
    rng = random.Random(0)
    target = pathlib.Path(arguments[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as lines:
        for _ in range(DOCUMENTS):
            text = " ".join(_sentence(rng) for _ in range(2))
            lines.write(json.dumps({"text": text}) + "\n")
    return 0


def _sentence(rng: random.Random) -> str:
    if rng.random() < 0.03:
        # A Unigram trainer takes as a piece only what is part of two different words: `the` and `the,`, for example.
        return f"Some words: {', '.join(rng.sample(WORDS, 4))}."
    if rng.random() < 0.4:
        day = rng.randrange(len(DAYS))
        return ORDER.format(first=DAYS[day], second=DAYS[(day + 1) % len(DAYS)])
    animal = rng.choice(list(ANIMALS))
    home, sound = ANIMALS[animal]
    return rng.choice(SAYINGS).format(animal=animal, home=home, sound=sound)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
