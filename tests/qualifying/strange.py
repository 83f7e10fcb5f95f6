"""Strange tokenizers: put together at random from all that a tokenizer.json may hold, one for each seed and number.

    family          model                normalizer             pre-tokenizer
    byte level      BPE of bytes         none, NFC, any         GPT-2's pattern and other models', any
    sentencepiece   BPE of characters    "▁" put in, any        none, Metaspace, Gemma's, any
    unigram         Unigram              chains of all steps    Metaspace, WhitespaceSplit before it, any
    wordpiece       WordPiece            BertNormalizer, any    BertPreTokenizer, any

Nobody has such tokenizers, or somebody has one of them: an engine that serves them all alike has to be right for each.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from tests.qualifying import strange_models as models
from tests.qualifying import strange_steps as steps
from tests.qualifying.strange_steps import Step
from tests.qualifying.strange_words import added_tokens, rare_points

__all__ = ["FAMILIES", "Strange", "make"]

_MARK: Step = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PREPEND: Step = {"type": "Prepend", "prepend": "▁"}
_AT_SPACES: Step = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_BERT: Step = {"type": "BertPreTokenizer"}
# Flags of added tokens that no fast engine takes in this family, and that therefore come seldom.
_UNSERVED = {"byte level": (), "sentencepiece": ("rstrip", "single_word"), "unigram": (), "wordpiece": ("normalized",)}
_WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strange:
    """A tokenizer as `transformers` opens it. `points`: code points that its texts hold beside the usual ones."""

    family: str
    tokenizer: Any
    points: tuple[str, ...]

    @property
    def about(self) -> str:
        """The tokenizer.json without vocabulary, merges and tables, as JSON on a line."""
        parts = json.loads(self.tokenizer.backend_tokenizer.to_str())
        model = {key: value for key, value in parts["model"].items() if key not in ("vocab", "merges")}
        kept = {key: parts[key] for key in ("added_tokens", "normalizer", "pre_tokenizer")}
        return json.dumps({**kept, "model": model}, ensure_ascii=False, default=str, sort_keys=True)


def make(seed: int, number: int) -> Strange:
    """The tokenizer of that number. Raises: whatever the libraries raise, if it is none that they take."""
    rng = random.Random(f"tokenizer {seed} {number}")
    family = list(FAMILIES)[number % len(FAMILIES)]
    model, normalizer, pre_tokenizer = FAMILIES[family](rng)
    state: Step = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    backend = Tokenizer.from_str(json.dumps({**state, "model": model}))
    _add_tokens(rng, backend, without=_UNSERVED[family] if rng.random() < 0.7 else ())
    points = tuple(rare_points(rng, 8))
    return Strange(family=family, tokenizer=_opened(rng, backend), points=points)


def _byte_level(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    normalizer = rng.choice((None, None, None, {"type": "NFC"}, {"type": "NFC"}, steps.normalizer(rng)))
    split = steps.byte_level_split(rng) if rng.random() < 0.93 else steps.pre_tokenizer(rng)
    return models.byte_level_bpe(rng), normalizer, split


def _sentencepiece(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    normalizer, split = rng.choice(
        (
            ({"type": "Sequence", "normalizers": [_PREPEND, _MARK]}, None),
            (None, steps.metaspace(rng)),
            (None, steps.metaspace(rng)),
            (_MARK, _AT_SPACES),
        )
    )
    if rng.random() < 0.1:
        normalizer = steps.normalizer(rng)
    if rng.random() < 0.1:
        split = steps.pre_tokenizer(rng)
    return models.sentencepiece_bpe(rng), normalizer, split


def _unigram(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    split: Step | None = steps.metaspace(rng)
    if rng.random() < 0.3:
        split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]}
    if rng.random() < 0.05:
        split = steps.pre_tokenizer(rng)
    return models.unigram(rng), steps.normalizer(rng), split


def _wordpiece(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    normalizer = steps.bert_normalizer(rng) if rng.random() < 0.95 else steps.normalizer(rng)
    return models.wordpiece(rng), normalizer, _BERT if rng.random() < 0.95 else steps.pre_tokenizer(rng)


FAMILIES: dict[str, Callable[[random.Random], tuple[Step, Step | None, Step | None]]] = {
    "byte level": _byte_level,
    "sentencepiece": _sentencepiece,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
}


def _add_tokens(rng: random.Random, backend: Tokenizer, *, without: Sequence[str]) -> None:
    for token in added_tokens(rng, sorted(backend.get_vocab()), without=without):
        # The reference never ends with a token that is normalized to nothing.
        if not (token.normalized and backend.normalizer and not backend.normalizer.normalize_str(token.content)):
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])


def _opened(rng: random.Random, backend: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    names = [rng.choice(("<s>", "</s>", "[CLS]", "[SEP]", "<unk>")) for _ in range(2)]
    pad = rng.choice((names[0], "<pad>", "[PAD]"))
    backend.add_special_tokens([*names, pad])
    # A build saves the tokenizer and loads it again, which changes ids where the vocabulary has holes.
    for _ in range(2):
        backend = Tokenizer.from_str(backend.to_str())
    first, last = ((name, backend.get_vocab()[name]) for name in names)
    if processor := steps.post_processor(rng, first=first, last=last):
        backend.post_processor = processor
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=10**9,
        pad_token=pad,
        split_special_tokens=rng.random() < 0.1,
        padding_side=rng.choice(("right", "left")),
        truncation_side=rng.choice(("right", "right", "left")),
        model_input_names=_WITH_TYPES if rng.random() < 0.6 else ["input_ids", "attention_mask"],
    )
