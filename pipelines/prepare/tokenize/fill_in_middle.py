"""Fill-in-the-middle: rewrite documents so that a model learns to write a missing middle.

    PSM                P prefix S suffix M middle     P, S and M are special tokens, the sentinels
    SPM                P S suffix M prefix middle

Source: Bavarian et al., arXiv:2207.14255. With the same random numbers and `truncate_or_pad=False`, Megatron-LM's
`GPTFIMDataset._permute` makes the same rows. docs/format.md describes how a row's random numbers choose form and split.
"""

import itertools
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.prepare.options.layout_config import LayoutConfig
from pipelines.prepare.sources.columns.extraction import Rows
from pipelines.prepare.tokenize.engines import Engine, HFTokenizer
from pipelines.prepare.tokenize.ragged import RaggedTokens, concatenated, from_lists
from pipelines.prepare.tokenize.row_draws import row_draws
from pipelines.prepare.tokenize.special_tokens import DocumentFrame, without_frame
from tfrecord_io.errors import TokenizerError
from tfrecord_io.shown import some

_KNOWN = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite, Stable Code, Yi-Coder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),  # Codestral
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4
)
# Kinds of rows. UNCHANGED: chosen, but too long if rewritten. Rows that are not chosen have kind 0.
PSM, SPM, UNCHANGED = 1, 2, 3
_SHOWN = 20


class FillInMiddle:
    """Rewrites a random share of documents for fill-in-the-middle training.

    `frame`: special tokens to remove before a document is split. `longest`: a document that would have more tokens
    after rewriting stays unchanged; None for no limit. Raises: TokenizerError if the vocabulary lacks a sentinel.
    """

    def __init__(
        self, tokenizer: HFTokenizer, layout: LayoutConfig, *, seed: int, frame: DocumentFrame, longest: int | None
    ) -> None:
        self.tokens = _sentinels(tokenizer, layout.fim_tokens)
        self._ids = tuple(int(tokenizer.convert_tokens_to_ids(token)) for token in self.tokens)
        self._rates, self._seed, self._longest = (layout.fim_rate, layout.fim_spm_rate), seed, longest
        self._frame = frame
        ends = (tokenizer.convert_ids_to_tokens(list(tokens)) for tokens in (frame.before, frame.after))
        self._ends = tuple(map("".join, ends))

    def encode(self, rows: Rows, engine: Engine) -> tuple[RaggedTokens, np.ndarray]:
        """Rewrite N documents. Return their tokens without a frame, and kinds (PSM, SPM, UNCHANGED or 0), uint8 [N]."""
        texts, draws = rows.texts[0], self._draws(rows)
        drawn = np.flatnonzero((draws[:, 0] < self._rates[0]) & (pc.binary_length(texts).to_numpy() > 0))
        arranged = self._arranged(self._split(texts.take(pa.array(drawn)), draws[drawn]), draws[drawn], engine)
        fits = arranged.lengths <= (arranged.lengths.max(initial=0) if self._longest is None else self._longest)
        kinds = np.zeros(len(rows), np.uint8)
        kinds[drawn] = np.where(fits, np.where(draws[drawn, 1] < self._rates[1], SPM, PSM), UNCHANGED)
        rewritten = drawn[fits]
        kept = np.setdiff1d(np.arange(len(rows)), rewritten)
        (plain,) = without_frame(engine.encode(texts.take(pa.array(kept))), self._frame)
        order = np.argsort(np.concatenate([kept, rewritten]))
        return concatenated([plain, arranged.take(np.flatnonzero(fits))]).take(order), kinds

    def require_reversible(self, rows: Rows, engine: Engine, tokenizer: HFTokenizer) -> None:
        """Check on sample rows that splitting a text into three parts loses no character.

        Raises: TokenizerError if the parts' tokens do not decode to the text, in Unicode's form NFC.
        """
        draws = self._draws(rows)
        parts = self._split(rows.texts[0], draws)
        tokens = engine.encode(pa.array(itertools.chain.from_iterable(parts), pa.string()))
        for row, number in enumerate(rows.numbers.tolist()):
            ids = tokens.ids[tokens.offsets[3 * row] : tokens.offsets[3 * row + 3]].tolist()
            decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            decoded, text = (unicodedata.normalize("NFC", string) for string in (decoded, "".join(parts[row])))
            if decoded != text:
                pairs = zip(decoded, text, strict=False)
                at = next((at for at, (left, right) in enumerate(pairs) if left != right), len(text))
                shown, expected = (string[max(0, at - _SHOWN) : at + _SHOWN] for string in (decoded, text))
                raise TokenizerError(
                    f"--fim-rate: row {number:,} of {rows.split}, split into three parts, decodes to {shown!r}, "
                    f"expected {expected!r}: this tokenizer changes texts, or puts a space before each part",
                    remedy="choose a tokenizer that keeps every character, such as a byte-level BPE, or leave "
                    "--fim-rate out",
                )

    def _draws(self, rows: Rows) -> np.ndarray:
        return row_draws(self._seed, split=rows.split, numbers=rows.numbers, count=4)

    def _split(self, texts: pa.Array, draws: np.ndarray) -> list[tuple[str, str, str]]:
        parts = []
        before, after = self._ends
        for text, numbers in zip(texts.to_pylist(), draws[:, 2:].tolist(), strict=True):
            text = text.removeprefix(before).removesuffix(after)
            start, stop = sorted(int(number * (len(text) + 1)) for number in numbers)
            parts.append((text[:start], text[start:stop], text[stop:]))
        return parts

    def _arranged(self, parts: Sequence[tuple[str, str, str]], draws: np.ndarray, engine: Engine) -> RaggedTokens:
        tokens = engine.encode(pa.array(itertools.chain.from_iterable(parts), pa.string()))
        sentinels = from_lists([*([token] for token in self._ids), []], dtype=tokens.ids.dtype)
        prefix = 3 * np.arange(len(parts))
        middle, suffix = prefix + 1, prefix + 2
        p, s, m, nothing = (np.full_like(prefix, 3 * len(parts) + at) for at in range(4))
        is_spm = draws[:, 1] < self._rates[1]
        early, late = np.where(is_spm, nothing, prefix), np.where(is_spm, prefix, nothing)
        order = np.stack([p, early, s, suffix, m, late, middle], axis=1)
        pieces = concatenated([tokens, sentinels]).take(order.ravel())
        return RaggedTokens(pieces.ids, pieces.offsets[:: order.shape[1]])


def counts(kinds: np.ndarray, *, is_longer: np.ndarray) -> Mapping[str, int]:
    """Count rows by kind, under the ledger's names. `kinds`: from `encode`. `is_longer` bool [N]: exceed a record."""
    masks = {"psm": kinds == PSM, "spm": kinds == SPM, "unchanged": kinds == UNCHANGED}
    masks["longer_than_row"] = is_longer & (masks["psm"] | masks["spm"])
    return {name: int(mask.sum()) for name, mask in masks.items() if mask.any()}


def _sentinels(tokenizer: HFTokenizer, names: str | None) -> tuple[str, ...]:
    if names is not None:
        tokens = tuple(names.split(","))
        for token in tokens:
            if not _is_token(tokenizer, token):
                pieces = tokenizer.tokenize(token)
                raise TokenizerError(
                    f"--fim-tokens: {token!r} is not in the vocabulary; the tokenizer splits it into "
                    f"{some(len(pieces), 'token')} ({' '.join(pieces[:5])})",
                    remedy="name tokens of this tokenizer, or add them with tokenizer.add_special_tokens, save the "
                    "tokenizer, and give its folder as --tokenizer",
                )
        return tokens
    for tokens in _KNOWN:
        if all(_is_token(tokenizer, token) for token in tokens):
            return tokens
    raise TokenizerError(
        f"--fim-rate: this tokenizer has no known sentinels, expected for example {' '.join(_KNOWN[0])}",
        remedy="name its sentinels with --fim-tokens PREFIX,SUFFIX,MIDDLE, or add three special tokens to a copy of "
        "the tokenizer, and give its folder as --tokenizer",
    )


def _is_token(tokenizer: HFTokenizer, token: str) -> bool:
    number = tokenizer.convert_tokens_to_ids(token)
    return number is not None and tokenizer.convert_ids_to_tokens(number) == token
