"""From counted words to a tokenizer: the model that its kind learns, in the template of its style."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.prepare.tokenizer_training import bpe, unigram
from pipelines.prepare.tokenizer_training.code_points import code_points
from pipelines.prepare.tokenizer_training.styles import StyleOptions, Template, template_of
from pipelines.prepare.tokenizer_training.word_counts import WordCounts
from tfrecord_io.errors import ConfigError, SourceError

__all__ = ["options_of", "require_room", "template_for", "train"]

_PREFIX = "##"

_log = logging.getLogger(__name__)


def template_for(request: TokenizerRequest) -> Template:
    """Return the template of the requested style and kind."""
    return template_of(request.chosen_style, request.kind, options_of(request))


def options_of(request: TokenizerRequest) -> StyleOptions:
    """Return what the request changes of its style."""
    return StyleOptions(lowercase=request.lowercase, special_tokens=request.special_tokens)


def require_room(template: Template, *, vocab_size: int) -> None:
    """Raise ConfigError, before any text is read, if the tokens do not fit that every vocabulary of the style has."""
    given = len(template.given) + len(template.last) + len(template.alphabet)
    if vocab_size <= given:
        raise ConfigError(
            f"--vocab-size {vocab_size}, but the special tokens{' and the bytes' if given > 256 else ''} of this style "
            f"are {given} already",
            remedy=f"give a --vocab-size of more than {given}",
        )


def train(
    words: WordCounts,
    template: Template,
    request: TokenizerRequest,
    *,
    threads: int = 1,
    report: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Return the tokenizer that the words give. Warns if its vocabulary is smaller than requested.

    `report` is called with a line of text now and then.

    Raises: SourceError if there are no words; ConfigError if special tokens and characters exceed the vocabulary.
    """
    if not len(words):
        raise SourceError(
            "the chosen rows hold no words: every text is empty, null, or left out",
            remedy="check --text-column, and what a --filter leaves",
        )
    # The last digits of sums depend on the order, which must be that of nothing but the words.
    words = words.in_order()
    if template.kind == "unigram":
        model = _unigram(words, template, request, threads=threads, report=report)
    else:
        model = _merged(words, template, request, report=report)
    tokenizer = template.complete(model)
    if (size := tokenizer.get_vocab_size()) < request.vocab_size:
        often = f"{request.min_frequency} times" if request.min_frequency > 1 else "more often"
        _log.warning(
            "the text gives a vocabulary of %s tokens only, of %s that were asked for: nothing else occurs %s",
            f"{size:,}",
            f"{request.vocab_size:,}",
            often,
        )
    return tokenizer


def _merged(
    words: WordCounts, template: Template, request: TokenizerRequest, *, report: Callable[[str], None] | None
) -> Any:
    """Return the model of a kind that merges pairs."""
    learned = bpe.learn(
        words.words,
        words.counts,
        vocab_size=request.vocab_size - len(template.last),
        special_tokens=template.given,
        initial_alphabet=template.alphabet,
        limit_alphabet=request.limit_alphabet,
        min_frequency=request.min_frequency,
        continuing_prefix=_PREFIX if template.kind == "wordpiece" else "",
        report=(lambda size: report(f"{size:,} tokens")) if report else None,
    )
    _require_fit(learned.num_given + len(template.last), request)
    vocabulary = {token: number for number, token in enumerate(learned.tokens)}
    if template.kind == "wordpiece":
        unknown = template.roles["unk_token"]
        return models.WordPiece(vocabulary, unk_token=unknown, continuing_subword_prefix=_PREFIX)
    return models.BPE(vocabulary, list(learned.merges), **template.model)


def _unigram(
    words: WordCounts,
    template: Template,
    request: TokenizerRequest,
    *,
    threads: int,
    report: Callable[[str], None] | None,
) -> Any:
    characters = np.count_nonzero(np.bincount(code_points(words.words)[0]))
    _require_fit(len(template.special) + int(characters), request)
    learned = words.first_of(unigram.MOST_CHARACTERS)
    if len(learned) < len(words):
        _log.warning(
            "pieces are learned from the %s most frequent of %s distinct words, which memory has room for",
            f"{len(learned):,}",
            f"{len(words):,}",
        )
    room = request.vocab_size - len(template.last)
    pieces = unigram.learn(
        learned.words,
        learned.counts,
        num_pieces=room - len(template.given),
        vocab_size=room,
        threads=threads,
        report=report,
    )
    found = [(token, 0.0) for token in template.given] + [each for each in pieces if each[0] not in template.given]
    return models.Unigram(found, template.given.index(template.roles["unk_token"]), False)


def _require_fit(given: int, request: TokenizerRequest) -> None:
    if given > request.vocab_size:
        limit = "" if request.kind == "unigram" else ", or fewer characters with --limit-alphabet"
        raise ConfigError(
            f"--vocab-size {request.vocab_size}, but special tokens and the characters of the text are {given} already",
            remedy=f"give a --vocab-size of more than {given}{limit}",
        )
