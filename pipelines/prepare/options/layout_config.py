"""Options of the layout, which makes rows of tokens from texts."""

import contextlib
import dataclasses
import datetime
import functools
from typing import Any, Literal

from pipelines.option_fields import check, declared, fingerprint_items, option, require_taken
from pipelines.prepare.options import bucket_lengths
from tfrecord_io.errors import ConfigError

Truncation = Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
Remainder = Literal["pad", "drop"]
LongDocuments = Literal["split", "truncate", "drop"]
SpecialTokens = Literal["eos", "bos-eos", "tokenizer", "none"]
# The answers to learn: all in a conversation, only the last, or each one in a row that ends with it.
Learn = Literal["all", "last", "each"]
LearnNot = Literal["thoughts", "tool_calls", "thoughts,tool_calls"]

# Each layout is a module in `layouts`. An option for only some layouts lists them in `taken_with`.
LayoutName = Literal["pad", "concat", "pack", "chat", "preference", "seq2seq", "tokens", "qa"]

_layout = functools.partial(option, group="Layout")
_changed = functools.partial(option, fingerprint="changed")
_pad = functools.partial(_changed, group="Layout pad, and qa", taken_with=("pad", "qa"))
_joined = functools.partial(_changed, group="Layouts concat and pack", taken_with=("concat", "pack"))
_template = functools.partial(_changed, group="Layouts chat and preference", taken_with=("chat", "preference"))
_chat = functools.partial(_changed, group="Layout chat", taken_with=("chat",))
_seq2seq = functools.partial(_changed, group="Layout seq2seq", taken_with=("seq2seq",))
_tokens = functools.partial(_changed, group="Layout tokens", taken_with=("tokens",))

LENGTH: dict[str, Any] = {"least": 1, "most": bucket_lengths.MOST_TOKENS}
SHARE: dict[str, Any] = {"least": 0, "most": 1, "remedy": "write 0.01 for one percent, or 0.5 for half"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """Options of the layout: how texts become rows of `max_length` tokens.

    `bucket_lengths`: ascending row lengths, the largest equal to `max_length`; the string `auto:K` until the launcher
    has chosen K lengths. `chat_template`: name of a template, or "default" for `TokenizerConfig.chat_template`.
    """

    name: LayoutName = _layout(
        "How texts become rows of tokens; `plan` compares the layouts for plain text.",
        "pad",
        brief="How texts become rows of tokens.",
        flags="--layout",
        fingerprint="always",
        key="layout",
    )
    max_length: int | None = _layout(
        "Tokens in a row. Default: the model's limit, at most 512.",
        None,
        brief="Tokens in a row.",
        **LENGTH,
        remedy="give the number of tokens in a row, such as 128 or 512",
    )
    truncation: Truncation = _layout(
        "Which of its texts is cut if a row is too long.",
        "longest_first",
        taken_with=("pad", "seq2seq", "tokens", "preference"),
        fingerprint="always",
    )
    bucket_lengths: str | tuple[int, ...] | None = _pad(
        "Several row lengths, each with its own shards, with --layout pad; auto:K chooses K lengths.",
        None,
        metavar="N,N,…|auto:K",
        taken_with=("pad",),
    )
    stride: int | None = _pad("Tokens that consecutive windows of a long row share.", None, least=0)
    special_tokens: SpecialTokens = _joined(
        "Special tokens around each document; tokenizer: those that the tokenizer puts around one text.",
        "eos",
    )
    remainder: Remainder = _joined(
        "What to do with the last, incomplete row of a shard, with --layout concat.",
        "pad",
        taken_with=("concat",),
        fingerprint="always",
    )
    segments: bool = _joined(
        "Store segments and positions that restart at each document, with --layout concat.",
        False,
        taken_with=("concat",),
    )
    long_documents: LongDocuments = _joined(
        "What to do with documents of more than --max-length tokens, with --layout pack.", "split", taken_with=("pack",)
    )
    most_documents: int | None = _joined(
        "Maximum number of documents in a row, with --layout pack.", None, least=1, taken_with=("pack",)
    )
    fim_rate: float = _joined("Share of documents to rewrite for fill-in-the-middle.", 0.0, **SHARE)
    fim_spm_rate: float = _joined("Share of rewritten documents with the suffix first.", 0.5, **SHARE)
    fim_tokens: str | None = _joined(
        "Sentinel tokens of fill-in-the-middle. Default: the vocabulary's, if known.",
        None,
        metavar="PREFIX,SUFFIX,MIDDLE",
    )
    chat_template: str | None = _template(
        "Name of one of the tokenizer's chat templates, chatml, or a file. Default: the tokenizer's default.",
        None,
        metavar="NAME_OR_FILE",
    )
    chat_date: str | None = _template("Date for chat templates that write today's date.", None, metavar="DATE")
    chat_options: tuple[str, ...] = _template(
        "Variable of the chat template, such as enable_thinking=false.", (), flags="--chat-option", metavar="KEY=VALUE"
    )
    learn: Learn | None = _chat(
        "Answers to learn; each: one row per answer, ending with it. Default: all, or for prompt and completion those "
        "of the completion.",
        None,
        brief="Answers of a chat to learn.",
    )
    learn_whole_turns: bool = _chat(
        "Learn all from an answer's role to the next turn, as TRL does, in templates without {% generation %}.", False
    )
    learn_not: LearnNot | None = _chat("Parts of answers that are not learned.", None)
    pack_rows: bool = _chat("Pack several conversations into a row.", False)
    target_length: int | None = _seq2seq("Tokens of a target. Default: the same as --max-length.", None, **LENGTH)
    input_prefix: str = _seq2seq("Text to put before each input text.", "", metavar="TEXT")
    label_all_tokens: bool = _tokens("Label all tokens of a word, not only the first.", False)

    def __post_init__(self) -> None:
        check(self)
        require_taken(self, "--layout", self.name)
        if self.stride is not None and self.max_length is not None and self.stride >= self.max_length:
            raise ConfigError(
                f"--stride {self.stride} with --max-length {self.max_length}, expected a smaller --stride, since each "
                "window must begin after the previous one",
                remedy="give for example a quarter of --max-length",
            )
        changes_cut = self.bucket_lengths or self.truncation != "longest_first"
        if self.name == "pad" and self.stride is not None and changes_cut:
            raise ConfigError(
                "--stride with --truncation or --bucket-lengths: --stride splits texts into windows of one length "
                "instead of cutting them",
                remedy="leave --stride or the other option out",
            )
        self._check_fill_in_middle()
        for text in self.chat_options:
            if not text.partition("=")[0].isidentifier() or "=" not in text:
                raise ConfigError(
                    f"--chat-option {text!r}, expected KEY=VALUE",
                    remedy="write for example --chat-option enable_thinking=false",
                )
        if self.chat_date is not None:
            _require_date(self.chat_date)
        if self.bucket_lengths is not None:
            lengths = bucket_lengths.parse(self.bucket_lengths, max_length=self.max_length)
            object.__setattr__(self, "bucket_lengths", lengths)
            if not isinstance(lengths, str):
                object.__setattr__(self, "max_length", lengths[-1])

    def _check_fill_in_middle(self) -> None:
        tokens = self.fim_tokens
        if tokens is not None and (len({*tokens.split(",")} - {""}) != 3 or tokens.count(",") != 2):
            raise ConfigError(
                f"--fim-tokens {tokens!r}, expected three different tokens with commas between them",
                remedy="write for example --fim-tokens '<fim_prefix>,<fim_suffix>,<fim_middle>'",
            )
        if not self.fim_rate and (tokens is not None or self.fim_spm_rate != LayoutConfig.fim_spm_rate):
            raise ConfigError(
                "--fim-tokens or --fim-spm-rate without --fim-rate: no document is rewritten",
                remedy="give --fim-rate too, such as --fim-rate 0.5",
            )

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row lengths of --bucket-lengths; empty without it, and while it is still `auto:K`."""
        return self.bucket_lengths if isinstance(self.bucket_lengths, tuple) else ()

    def non_default_options(self) -> dict[str, Any]:
        """Return the values of layout options that differ from their defaults, by name, for the manifest."""
        items, defaults = fingerprint_items(self), vars(LayoutConfig)
        return {name: items[name] for name in items if name in LAYOUT_OPTIONS and items[name] != defaults[name]}


LAYOUT_OPTIONS = tuple(option.field for option in declared(LayoutConfig) if option.taken_with)


def _require_date(text: str) -> None:
    with contextlib.suppress(ValueError):
        # fromisoformat accepts more forms from Python 3.11 on.
        if datetime.date.fromisoformat(text).isoformat() == text:
            return
    raise ConfigError(f"--chat-date {text!r}, expected a date such as 2024-07-26", remedy="write it as YYYY-MM-DD")
