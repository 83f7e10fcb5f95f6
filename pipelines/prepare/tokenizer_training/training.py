"""Train a tokenizer, and evaluate it.

The trainers of `tokenizers` number the characters that continue a word (`##a`) in random order, and this order decides
between merges that are equally frequent. So for WordPiece, the texts are read twice: first to collect the characters.
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
from tfrecord_io.shown import some

_PREFIX = "##"
# Maximum number of words to remember; each takes about 100 bytes.
_MOST_SEEN = 1 << 19

_log = logging.getLogger(__name__)


def template_for(request: TokenizerRequest) -> StyleTemplate:
    """Return the template of the requested style and kind, with the user's special tokens.

    Raises: ConfigError if the vocabulary has room only for the style's fixed tokens.
    """
    style, lowercase, size = request.chosen_style, request.lowercase is not False, request.vocab_size
    template = template_of(style, request.kind, lowercase=lowercase, special_tokens=request.special_tokens)
    fixed = len(template.leading) + len(template.last) + len(template.alphabet)
    if size <= fixed:
        raise ConfigError(
            f"--vocab-size {size} is too small: this style already has {some(fixed, 'special token')}"
            f"{' and bytes' if fixed > 256 else ''}",
            remedy=f"give a --vocab-size of more than {fixed}",
        )
    return template


def characters_of(texts: Iterable[list[str]], template: StyleTemplate) -> list[str]:
    """Return all characters in batches of texts, in order, then those that also continue words, prefixed with `##`."""
    splitter = template.splitter()
    occurs = np.zeros(sys.maxunicode + 1, bool)
    # For each character X, the number of words in aXa; 0 if not tested yet.
    words = np.zeros(len(occurs), np.int8)
    continues = np.zeros(len(occurs), bool)
    seen: set[str] = set()
    for batch in texts:
        if len(seen) > _MOST_SEEN:
            seen.clear()
        new = set(" ".join(batch).split(" ")) - seen  # normalizing each word only once takes a quarter of the time
        seen |= new
        text = splitter.normalizer.normalize_str(" ".join(new))
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        occurs[points] = True
        for point in np.unique(points[words[points] == 0]).tolist():
            words[point] = len(splitter.pre_tokenizer.pre_tokenize_str(f"a{chr(point)}a"))
        joins = words[points] == 1
        continues[points[1:][joins[1:] & joins[:-1]]] = True
    characters = np.flatnonzero(occurs & (words != 2))  # white space, which is in no word, is excluded
    return [*map(chr, characters.tolist()), *(f"{_PREFIX}{chr(point)}" for point in characters[continues[characters]])]


def train(
    texts: Iterable[list[str]], template: StyleTemplate, request: TokenizerRequest, characters: list[str]
) -> Tokenizer:
    """Train a tokenizer on batches of texts. Warns if its vocabulary is smaller than requested.

    `characters`: the result of `characters_of` for WordPiece, else empty.
    Raises: ConfigError; errors of `texts`.
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
        often = f"that occur {request.min_frequency} times" if request.min_frequency > 1 else "to learn"
        _log.warning(
            "the texts give a vocabulary of only %s, expected %s: they contain no more parts of words %s",
            some(size, "token"),
            f"{request.vocab_size:,}",
            often,
        )
    return tokenizer


def _model_and_trainer(template: StyleTemplate, request: TokenizerRequest, characters: list[str]) -> tuple[Any, Any]:
    options: dict[str, Any] = {"vocab_size": request.vocab_size - len(template.last), "show_progress": False}
    tokens = list(template.leading)
    if template.kind == "unigram":
        unknown = template.roles["unk_token"]
        return models.Unigram(), trainers.UnigramTrainer(unk_token=unknown, special_tokens=tokens, **options)
    options["min_frequency"] = request.min_frequency
    alphabet = [character for character in characters if len(character) == 1] or template.alphabet
    if alphabet:
        options.update(initial_alphabet=alphabet, limit_alphabet=len(alphabet))
    if template.kind in ("bpe", "byte-bpe"):
        return models.BPE(**template.model), trainers.BpeTrainer(special_tokens=tokens, **options)
    trainer = trainers.WordPieceTrainer(
        special_tokens=[*tokens, *characters], continuing_subword_prefix=_PREFIX, **options
    )
    return models.WordPiece(unk_token=template.roles["unk_token"]), trainer


def _without_repeats(learner: Tokenizer) -> Any:
    # Special tokens in the texts cause repeated pieces. Scores are rounded, because `tokenizers` writes more digits
    # than it reads.
    model = json.loads(learner.to_str())["model"]
    pieces: dict[str, float] = {}
    for piece, score in model["vocab"]:
        pieces.setdefault(piece, round(score, 10))
    return models.Unigram(list(pieces.items()), model["unk_id"], False)


def _no_room(request: TokenizerRequest) -> ConfigError:
    return ConfigError(
        f"--vocab-size {request.vocab_size} is too small for the special tokens and the characters of the texts",
        remedy="give a larger --vocab-size",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerEvaluation:
    """Result of encoding `texts` texts with `engine`. Words are separated by white space."""

    texts: int
    tokens_per_word: float
    unknown_share: float
    engine: str


def evaluate(tokenizer: engines.HFTokenizer, texts: list[str]) -> TokenizerEvaluation:
    """Evaluate a tokenizer of transformers on texts, with the engine that `build` would use."""
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
