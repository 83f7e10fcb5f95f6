"""Train a tokenizer, with the trainer for its kind and the template of its style, and evaluate it.

The trainers of `tokenizers` number characters that continue a word (`##a`) in random order, which breaks ties between
equally frequent merges. So WordPiece reads the texts twice, and first collects its characters.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, models, trainers

from pipelines.prepare.options.tokenizer_options import TokenizerRequest
from pipelines.prepare.tokenize import engines
from pipelines.prepare.tokenize.ragged import id_dtype
from pipelines.prepare.tokenizer_training.styles import StyleTemplate, template_of
from tfrecord_io.errors import ConfigError

_PREFIX = "##"
# about 100 bytes each
_MOST_SEEN = 1 << 19

_log = logging.getLogger(__name__)


def template_for(request: TokenizerRequest) -> StyleTemplate:
    """Return the template of the requested style and kind.

    Raises: ConfigError if the fixed tokens of the style don't fit the vocabulary.
    """
    style, lowercase, size = request.chosen_style, request.lowercase is not False, request.vocab_size
    template = template_of(style, request.kind, lowercase=lowercase, special_tokens=request.special_tokens)
    given = len(template.given) + len(template.last) + len(template.alphabet)
    if size <= given:
        raise ConfigError(
            f"--vocab-size {size}, but the special tokens{' and the bytes' if given > 256 else ''} of this style "
            f"are {given} already",
            remedy=f"give a --vocab-size of more than {given}",
        )
    return template


def characters_of(texts: Iterable[list[str]], template: StyleTemplate) -> list[str]:
    """Return the characters of WordPiece's texts by code point, then `##` + each that continues a word."""
    splitter = template.splitter()
    occurs = np.zeros(sys.maxunicode + 1, bool)
    # Number of words that each character between two letters becomes; 0 if not tried yet.
    words = np.zeros(len(occurs), np.int8)
    continues = np.zeros(len(occurs), bool)
    seen: set[str] = set()
    for batch in texts:
        if len(seen) > _MOST_SEEN:
            seen.clear()
        new = set(" ".join(batch).split(" ")) - seen  # takes a quarter of the time
        seen |= new
        text = splitter.normalizer.normalize_str(" ".join(new))
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        occurs[points] = True
        for point in np.unique(points[words[points] == 0]).tolist():
            words[point] = len(splitter.pre_tokenizer.pre_tokenize_str(f"a{chr(point)}a"))
        joins = words[points] == 1
        continues[points[1:][joins[1:] & joins[:-1]]] = True
    characters = np.flatnonzero(occurs & (words != 2))  # white space is in no word
    return [*map(chr, characters.tolist()), *(f"{_PREFIX}{chr(point)}" for point in characters[continues[characters]])]


def train(
    texts: Iterable[list[str]], template: StyleTemplate, request: TokenizerRequest, characters: list[str]
) -> Tokenizer:
    """Train a tokenizer on the texts. Warns if its vocabulary is smaller than requested.

    `characters`: from `characters_of`, for WordPiece.
    Raises: ConfigError if special tokens and characters exceed the vocabulary; any error of the iteration.
    """
    learner = template.splitter()
    learner.model, trainer = _model_and_trainer(template, request, characters)
    try:
        learner.train_from_iterator(texts, trainer)
    except Exception as error:
        if type(error) is Exception and "vocabulary is not large enough" in str(error):
            raise _no_room(request) from None
        raise
    if learner.get_vocab_size(with_added_tokens=False) > request.vocab_size - len(template.last):
        raise _no_room(request)
    tokenizer = template.complete(_without_repeats(learner) if template.kind == "unigram" else learner.model)
    if (size := tokenizer.get_vocab_size()) < request.vocab_size:
        often = f"{request.min_frequency} times" if request.min_frequency > 1 else "more often"
        _log.warning(
            "the text gives a vocabulary of %s tokens only, of %s that were asked for: nothing else occurs %s",
            f"{size:,}",
            f"{request.vocab_size:,}",
            often,
        )
    return tokenizer


def _model_and_trainer(template: StyleTemplate, request: TokenizerRequest, characters: list[str]) -> tuple[Any, Any]:
    options: dict[str, Any] = {"vocab_size": request.vocab_size - len(template.last), "show_progress": False}
    given = list(template.given)
    if template.kind == "unigram":
        unknown = template.roles["unk_token"]
        return models.Unigram(), trainers.UnigramTrainer(unk_token=unknown, special_tokens=given, **options)
    options["min_frequency"] = request.min_frequency
    alphabet = [each for each in characters if len(each) == 1] or template.alphabet
    if alphabet:
        options.update(initial_alphabet=alphabet, limit_alphabet=len(alphabet))
    if template.kind in ("bpe", "byte-bpe"):
        return models.BPE(**template.model), trainers.BpeTrainer(special_tokens=given, **options)
    trainer = trainers.WordPieceTrainer(
        special_tokens=[*given, *characters], continuing_subword_prefix=_PREFIX, **options
    )
    return models.WordPiece(unk_token=template.roles["unk_token"]), trainer


def _without_repeats(learner: Tokenizer) -> Any:
    """Return the Unigram model without repeated pieces: special tokens in the texts are learned again.

    Scores are rounded, since `tokenizers` doesn't read all digits that it writes.
    """
    model = json.loads(learner.to_str())["model"]
    pieces: dict[str, float] = {}
    for piece, score in model["vocab"]:
        pieces.setdefault(piece, round(score, 10))
    return models.Unigram(list(pieces.items()), model["unk_id"], False)


def _no_room(request: TokenizerRequest) -> ConfigError:
    return ConfigError(
        f"--vocab-size {request.vocab_size}, but special tokens and the characters of the text are more",
        remedy="give a larger --vocab-size",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerEvaluation:
    """Evaluation of a tokenizer on texts. White space separates words. `unknown_share`: fraction of the tokens."""

    texts: int
    tokens_per_word: float
    unknown_share: float
    engine: str


def evaluate(tokenizer: engines.HFTokenizer, texts: list[str]) -> TokenizerEvaluation:
    """Evaluate a tokenizer of transformers on texts, with the engine that `build` uses for it."""
    dtype, unknown = id_dtype(len(tokenizer)), tokenizer.unk_token_id
    engine, _ = engines.decide(tokenizer, engines.open_reference(tokenizer, dtype=dtype), dtype=dtype)
    ids = engine.encode(pa.array(texts, pa.large_string())).ids
    num_unknown = 0 if unknown is None else int(np.count_nonzero(ids == unknown))
    return TokenizerEvaluation(
        texts=len(texts),
        tokens_per_word=len(ids) / max(1, sum(len(text.split()) for text in texts)),
        unknown_share=num_unknown / max(1, len(ids)),
        engine=engine.name,
    )
