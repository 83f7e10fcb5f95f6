"""Fill-in-the-middle: rewrite documents so that a language model learns to write a missing middle.

    text               "def f(x):⏎ return x + 1"      split at two characters: prefix, middle, suffix
    PSM                P prefix S suffix M middle     P, S and M are the vocabulary's sentinels
    SPM                P S suffix M prefix middle

Bavarian et al., arXiv:2207.14255. With the same random numbers, Megatron-LM's `GPTFIMDataset._permute`
(`megatron/training/datasets/fim_dataset.py`) makes the same rows with `truncate_or_pad=False`. Each part is tokenized
alone. Four numbers of a row decide (`row_draws`): it is rewritten if the first is below --fim-rate, as SPM if the
second is below --fim-spm-rate. The others, u, split a text of n characters at floor(u (n + 1)). Empty texts stay.
"""

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
# Kinds of rows; others are 0.
PSM, SPM, UNCHANGED = 1, 2, 3
_SHOWN = 20


class FillInMiddle:
    """The rewriting of documents, with the sentinels of one tokenizer.

    `frame`: special tokens around each document, left out of the split. `longest`: documents with more tokens after
    rewriting stay as they are; None for no limit.
    """

    def __init__(
        self, tokenizer: HFTokenizer, layout: LayoutConfig, *, seed: int, frame: DocumentFrame, longest: int | None
    ) -> None:
        """Find the sentinels. Raises: TokenizerError if the vocabulary lacks them."""
        self.tokens = _sentinels(tokenizer, layout.fim_tokens)
        self._ids = tuple(int(tokenizer.convert_tokens_to_ids(token)) for token in self.tokens)
        self._rates, self._seed, self._longest = (layout.fim_rate, layout.fim_spm_rate), seed, longest
        self._frame = frame
        ends = (tokenizer.convert_ids_to_tokens(list(tokens)) for tokens in (frame.before, frame.after))
        self._ends = tuple(map("".join, ends))

    def encode(self, rows: Rows, engine: Engine) -> tuple[RaggedTokens, np.ndarray]:
        """Return the documents of N rows without their frame, and their kinds, uint8 [N]."""
        texts, draws = rows.texts[0], self._draws(rows)
        drawn = np.flatnonzero((draws[:, 0] < self._rates[0]) & (pc.binary_length(texts).to_numpy() > 0))
        made = self._arranged(self._split(texts.take(pa.array(drawn)), draws[drawn]), draws[drawn], engine)
        fits = made.lengths <= (made.lengths.max(initial=0) if self._longest is None else self._longest)
        kinds = np.zeros(len(rows), np.uint8)
        kinds[drawn] = np.where(fits, np.where(draws[drawn, 1] < self._rates[1], SPM, PSM), UNCHANGED)
        rewritten = drawn[fits]
        others = np.setdiff1d(np.arange(len(rows)), rewritten)
        (plain,) = without_frame(engine.encode(texts.take(pa.array(others))), self._frame)
        order = np.argsort(np.concatenate([others, rewritten]))
        return concatenated([plain, made.take(np.flatnonzero(fits))]).take(order), kinds

    def require_reversible(self, rows: Rows, engine: Engine, tokenizer: HFTokenizer) -> None:
        """Check that the parts of each text decode to the text, up to NFC. Raises: TokenizerError."""
        draws = self._draws(rows)
        parts = self._split(rows.texts[0], draws)
        tokens = engine.encode(pa.array([part for each in parts for part in each], pa.string()))
        for row, number in enumerate(rows.numbers.tolist()):
            ids = tokens.ids[tokens.offsets[3 * row] : tokens.offsets[3 * row + 3]].tolist()
            decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            got, text = (unicodedata.normalize("NFC", each) for each in (decoded, "".join(parts[row])))
            if got != text:
                at = next((at for at, pair in enumerate(zip(got, text, strict=False)) if pair[0] != pair[1]), len(text))
                found, expected = (each[max(0, at - _SHOWN) : at + _SHOWN] for each in (got, text))
                raise TokenizerError(
                    f"--fim-rate: row {number:,} of {rows.split}, split into three parts, decodes to {found!r}, "
                    f"expected {expected!r}: this tokenizer changes texts, or puts a space before each part",
                    remedy="choose a tokenizer that keeps every character, such as a byte-level BPE, or leave "
                    "--fim-rate out",
                )

    def _draws(self, rows: Rows) -> np.ndarray:
        return row_draws(self._seed, split=rows.split, numbers=rows.numbers, count=4)

    def _split(self, texts: pa.Array, draws: np.ndarray) -> list[tuple[str, str, str]]:
        found = []
        before, after = self._ends
        for text, places in zip(texts.to_pylist(), draws[:, 2:].tolist(), strict=True):
            text = text.removeprefix(before).removesuffix(after)
            start, stop = sorted(int(place * (len(text) + 1)) for place in places)
            found.append((text[:start], text[start:stop], text[stop:]))
        return found

    def _arranged(self, parts: Sequence[tuple[str, str, str]], draws: np.ndarray, engine: Engine) -> RaggedTokens:
        tokens = engine.encode(pa.array([part for each in parts for part in each], pa.string()))
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
    """Count rows by kind, and rewritten ones longer than a row of a record (`is_longer`, bool [N])."""
    found = {"psm": kinds == PSM, "spm": kinds == SPM, "unchanged": kinds == UNCHANGED}
    found["longer_than_row"] = is_longer & (found["psm"] | found["spm"])
    return {name: int(each.sum()) for name, each in found.items() if each.any()}


def _sentinels(tokenizer: HFTokenizer, given: str | None) -> tuple[str, ...]:
    if given is not None:
        tokens = tuple(given.split(","))
        for token in tokens:
            if not _is_token(tokenizer, token):
                pieces = tokenizer.tokenize(token)
                raise TokenizerError(
                    f"--fim-tokens: {token!r} is {len(pieces)} tokens ({' '.join(pieces[:5])}), expected one entry of "
                    "the vocabulary",
                    remedy="name tokens of this tokenizer, or add them with tokenizer.add_special_tokens, save it, and "
                    "give its folder as --tokenizer",
                )
        return tokens
    for tokens in _KNOWN:
        if all(_is_token(tokenizer, token) for token in tokens):
            return tokens
    raise TokenizerError(
        f"--fim-rate: this tokenizer has no known sentinels, expected for example {' '.join(_KNOWN[0])}",
        remedy="name its sentinels with --fim-tokens PREFIX,SUFFIX,MIDDLE, or add three special tokens and save it",
    )


def _is_token(tokenizer: HFTokenizer, token: str) -> bool:
    number = tokenizer.convert_tokens_to_ids(token)
    return number is not None and tokenizer.convert_ids_to_tokens(number) == token
