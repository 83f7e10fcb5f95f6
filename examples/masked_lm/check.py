"""Checks what a model has learned: `python examples/masked_lm/check.py MODEL_DIR`, a finished training run.

Fills every gap of a fixed list, two for each animal and two for each day, and compares with the facts of the text. The
status is 1 unless more than half are right.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MASK = "[MASK]"
LEAST = 0.5  # all were right with most seeds
ROW = 16  # tokens, as in run.sh


def gaps() -> list[tuple[str, str]]:
    """Texts with a gap, and the word that belongs there."""
    world = runpy.run_path(str(Path(__file__).with_name("make_text.py")))
    animals, days = world["ANIMALS"], world["DAYS"]
    after = dict(zip(days, (*days[1:], days[0]), strict=True))
    return [
        *((f"The {animal} lives in the {MASK}.", home) for animal, (home, _) in animals.items()),
        *((f"The {MASK} says {sound}.", animal) for animal, (_, sound) in animals.items()),
        *((f"{MASK} comes after {day}.", following) for day, following in after.items()),
        *((f"{following} comes after {MASK}.", day) for day, following in after.items()),
    ]


def fill(model_dir: str, texts: Sequence[str]) -> list[str]:
    """The likeliest token for the gap of each text, all texts in one batch."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import keras_hub  # noqa: F401 (the layers of the model)
    import numpy as np
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(f"{model_dir}/tokenizer", local_files_only=True)
    model: Any = keras.models.load_model(f"{model_dir}/model.keras", compile=False)
    features = dict(tokenizer(list(texts), padding="max_length", max_length=ROW, return_tensors="np"))
    features["masked_positions"] = np.argmax(features["input_ids"] == tokenizer.mask_token_id, axis=1)[:, np.newaxis]
    logits_NV = model.predict_on_batch({name: features[name].astype(np.int32) for name in model.input})[:, 0]
    return [token.removeprefix("▁") for token in tokenizer.convert_ids_to_tokens(np.argmax(logits_NV, axis=-1))]


def main(arguments: Sequence[str]) -> int:
    """The command line: one argument, the folder of a trained model."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python examples/masked_lm/check.py MODEL_DIR", file=sys.stderr)
        return 2
    texts, words = zip(*gaps(), strict=True)
    found = fill(arguments[0], texts)
    for text, word, best in zip(texts, words, found, strict=True):
        if best != word.lower():
            print(f"wrong: {text} {best}, expected {word}")
    right = sum(best == word.lower() for word, best in zip(words, found, strict=True))
    print(f"{right} of {len(words)} gaps filled with the right word")
    return 0 if right > LEAST * len(words) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
