"""The special tokens that the layouts `concat` and `pack` put around each document.

--special-tokens eos         document EOS            (the separator token where a tokenizer has no EOS)
                 bos-eos     BOS document EOS
                 tokenizer   what the tokenizer itself puts around one text, such as [CLS] document [SEP]
                 none        document
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pipelines.prepare.options.layout_config import SpecialTokens
from pipelines.prepare.tokenize.engines import BATTERY
from tfrecord_io.errors import TokenizerError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentFrame:
    """The token ids that are put before and after each document."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens that each document gets besides its own."""
        return len(self.before) + len(self.after)


def open_frame(tokenizer: Any, special_tokens: SpecialTokens) -> DocumentFrame:
    """Return the tokens around a document. Raises: TokenizerError if the tokenizer does not have them."""
    if special_tokens == "none":
        return DocumentFrame()
    if special_tokens == "tokenizer":
        return _tokenizers_own(tokenizer)
    eos, sep, bos = tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id
    if special_tokens == "bos-eos" and bos is None:
        raise TokenizerError(
            "--special-tokens bos-eos begins documents with a BOS token, but this tokenizer has none",
            remedy="give --special-tokens eos or tokenizer, or set bos_token in its tokenizer_config.json",
        )
    if eos is None and sep is None:
        raise TokenizerError(
            "documents end with an EOS token, but this tokenizer has neither an EOS nor a separator token",
            remedy="give --special-tokens none, set eos_token in its tokenizer_config.json, or choose --layout pad",
        )
    end = int(sep if eos is None else eos)
    return DocumentFrame(before=(int(bos),) if special_tokens == "bos-eos" else (), after=(end,))


def left_out_bos(tokenizer: Any, special_tokens: SpecialTokens) -> str | None:
    """Return the BOS token if the tokenizer begins every text with it and documents would go without, else None.

    A model that was trained with BOS in front of each document does much worse without it, and nothing fails.
    """
    bos_id = tokenizer.bos_token_id
    if bos_id is None or special_tokens in ("bos-eos", "tokenizer"):
        return None
    return str(tokenizer.bos_token) if tokenizer("a")["input_ids"][:1] == [bos_id] else None


def _tokenizers_own(tokenizer: Any) -> DocumentFrame:
    """Take the frame from one text, and require it of a battery of texts, since a tokenizer may add anything."""
    own = tokenizer("a b", add_special_tokens=False)["input_ids"]
    encoded = tokenizer("a b", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    start = special.index(0) if 0 in special else len(ids)
    frame = DocumentFrame(before=tuple(ids[:start]), after=tuple(ids[start + len(own) :]))
    for text in ("a b", "", *BATTERY):
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokenizer(text)["input_ids"] != [*frame.before, *own, *frame.after]:
            raise TokenizerError(
                "--special-tokens tokenizer: this tokenizer does not put the same tokens around every text",
                remedy="give --special-tokens eos, bos-eos or none, or choose --layout pad",
            )
    return frame
