"""Writes the text of this example: `python examples/masked_lm/make_text.py OUT.jsonl`.

Facts of a small world, said in several ways: which animal lives where, eats what and makes which sound, and which day
follows which. A model that has read them can fill a gap, and whether it is right can be checked. The same bytes each
time; 6,000 documents of four sentences, 1 MB.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys

ANIMALS = {
    "cow": ("field", "grass", "moo"),
    "cat": ("house", "fish", "meow"),
    "dog": ("kennel", "meat", "woof"),
    "owl": ("forest", "mice", "hoot"),
    "duck": ("pond", "bread", "quack"),
    "horse": ("stable", "hay", "neigh"),
    "frog": ("swamp", "flies", "croak"),
    "bee": ("hive", "nectar", "buzz"),
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SAYINGS = (
    "The {animal} lives in the {home}.",
    "The {animal} eats {food}.",
    'The {animal} says "{sound}".',
    "If you go to the {home}, you will meet the {animal}.",
    "Give the {animal} some {food}, and it will be happy.",
    'When you hear a "{sound}", the {animal} is near.',
)
ORDERS = ("{second} comes after {first}.", "The day before {second} is {first}.", "{first} is followed by {second}.")
DOCUMENTS = 6000


def main(path: str) -> None:
    rng = random.Random(0)
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as lines:
        for _ in range(DOCUMENTS):
            text = " ".join(_sentence(rng) for _ in range(4))
            lines.write(json.dumps({"text": text}) + "\n")


def _sentence(rng: random.Random) -> str:
    if rng.random() < 0.25:
        day = rng.randrange(len(DAYS))
        return rng.choice(ORDERS).format(first=DAYS[day], second=DAYS[(day + 1) % len(DAYS)])
    animal = rng.choice(list(ANIMALS))
    home, food, sound = ANIMALS[animal]
    return rng.choice(SAYINGS).format(animal=animal, home=home, food=food, sound=sound)


if __name__ == "__main__":
    main(sys.argv[1])
