"""The characters that are given to the trainers: all that these would find, so that they number none themselves."""

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from tokenizers import models, trainers

from pipelines.prepare.tokenizer_training import training
from pipelines.prepare.tokenizer_training.styles import template_of
from tests.support.texts import MULTI_SCRIPT, reviews

# Spaces of all kinds, characters that normalizers remove or turn into others, marks, punctuation, and letters.
STRANGE = " \t\n\u00a0\u3000\u200b\u2028\x1c\x00\u0301\ufeff▁'\"aZéİß漢ж1２.,!$^\ufb01\U0001d4b3"


def theirs(texts: list[str], template: Any) -> set[str]:
    """The characters that the trainer itself finds: a vocabulary without room for a merge."""
    learner = template.splitter()
    trainer: Any = trainers.BpeTrainer(vocab_size=0, show_progress=False)
    if template.kind == "wordpiece":
        learner.model, trainer = models.WordPiece(), trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    return set(learner.get_vocab(with_added_tokens=False))


@pytest.mark.parametrize("lowercase", [True, False])
@hypothesis.settings(deadline=None)
@hypothesis.given(texts=st.lists(st.text(STRANGE, max_size=20), min_size=1, max_size=5))
@hypothesis.example(texts=[*reviews(), *MULTI_SCRIPT])
def test_characters_of_wordpiece_are_those_that_the_trainer_finds(texts: list[str], lowercase: bool) -> None:
    template = template_of("bert", "wordpiece", lowercase=lowercase)
    characters = training.characters_of([texts[:2], texts[2:]], template)
    assert set(characters) == theirs(texts, template)
    assert characters == sorted(characters, key=lambda character: (len(character), character))
