"""Unigram from counts: the pieces and scores that `tokenizers` learns from the texts themselves."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.prepare.tokenizer_training import unigram
from tests.prepare.tokenizer_training.texts import arrays, counted, reviews


def backend() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def theirs(vocab_size: int) -> dict[str, float]:
    tokenizer = backend()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(reviews(), trainer)
    return dict(json.loads(tokenizer.to_str())["model"]["vocab"][1:])


@pytest.mark.parametrize("vocab_size", [200, 400, 800, 3000])
def test_pieces_and_scores_are_theirs(vocab_size: int) -> None:
    expected = theirs(vocab_size)
    words, counts = counted(reviews(), backend())
    found = dict(unigram.learn(words, counts, num_pieces=vocab_size - 1, vocab_size=vocab_size))
    # Where two pieces are equally good, theirs decides otherwise each time.
    assert len(found.keys() ^ expected.keys()) <= 0.02 * len(found)
    both = found.keys() & expected.keys()
    # A letter that is never the best choice gets the least score, and 0.0001 more for each in a random order.
    near = [piece for piece in both if abs(found[piece] - expected[piece]) < 1e-6 or len(piece) == 1]
    assert len(near) >= 0.98 * len(both)


def test_neither_threads_nor_the_way_of_running_change_a_score() -> None:
    words, counts = counted(reviews(), backend())
    first = unigram.learn(words, counts, num_pieces=500, vocab_size=500)
    assert unigram.learn(words, counts, num_pieces=500, vocab_size=500, threads=3) == first


def test_every_letter_is_a_piece_and_scores_fall() -> None:
    words, counts = counted(reviews(), backend())
    learned = unigram.learn(words, counts, num_pieces=300, vocab_size=300)
    assert len(learned) == 300
    assert set("".join(words.to_pylist())) <= {piece for piece, _ in learned}
    assert [score for _, score in learned] == sorted((score for _, score in learned), reverse=True)


def test_long_words_without_spaces_do_not_underflow() -> None:
    text = unicodedata.normalize("NFKC", "形態素解析は日本語の文を単語に分ける。" * 200)
    learned = unigram.learn(*arrays([text, "解析", "文"], [1, 5, 5]), num_pieces=60, vocab_size=60)
    assert all(np.isfinite(score) for _, score in learned)


def test_words_of_one_letter_give_letters() -> None:
    assert [piece for piece, _ in unigram.learn(*arrays(["a", "b"], [3, 1]), num_pieces=9, vocab_size=9)] == ["a", "b"]
