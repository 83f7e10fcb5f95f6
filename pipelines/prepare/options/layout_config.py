"""Options of the layout: how texts become rows of tokens."""

import dataclasses
import datetime
import functools
from typing import Any, Literal

from pipelines.option_fields import check, declared, fingerprint_items, option, require_taken
from pipelines.prepare.options import bucket_lengths
from pipelines.prepare.options.bucket_lengths import MOST_TOKENS
from tfrecord_io.errors import ConfigError

Truncation = Literal["longest_first", "only_first", "only_second", "do_not_truncate"]
Remainder = Literal["pad", "drop"]
LongDocuments = Literal["split", "truncate", "drop"]
SpecialTokens = Literal["eos", "bos-eos", "tokenizer", "none"]
# The learned answers: all in one text, the last one, or one text per answer, which ends with it.
Learn = Literal["all", "last", "each"]
LearnNot = Literal["thoughts", "tool_calls", "thoughts,tool_calls"]

# Each layout is a file in `layouts`; options that only some layouts take name them in `taken_with`.
LayoutName = Literal["pad", "concat", "pack", "chat", "preference", "seq2seq", "tokens", "qa"]

_layout = functools.partial(option, group="Layout")
_pad = functools.partial(option, group="Layout pad, and qa", fingerprint="changed")
_joined = functools.partial(option, group="Layouts concat and pack", fingerprint="changed")
_template = functools.partial(
    option, group="Layouts chat and preference", taken_with=("chat", "preference"), fingerprint="changed"
)
_chat = functools.partial(option, group="Layout chat", taken_with=("chat",), fingerprint="changed")
_seq2seq = functools.partial(option, group="Layout seq2seq", taken_with=("seq2seq",), fingerprint="changed")
_tokens = functools.partial(option, group="Layout tokens", taken_with=("tokens",), fingerprint="changed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """The layout of texts in rows of `max_length` tokens.

    `bucket_lengths` are ascending; the largest becomes `max_length`. `auto:K` stays a string until the launcher has
    chosen K lengths. `chat_template` is a template's name, or "default" for one from a file, which is in
    TokenizerConfig.
    """

    name: LayoutName = _layout(
        "How texts become rows of tokens; `plan` compares them on your rows.",
        "pad",
        brief="How texts become rows of tokens.",
        flags="--layout",
        fingerprint="always",
        key="layout",
    )
    max_length: int | None = _layout(
        "Tokens in a row. Default: the model's, at most 512.",
        None,
        brief="Tokens in a row.",
        least=1,
        most=MOST_TOKENS,
        remedy="give the tokens of one row, such as 128 or 512",
    )
    truncation: Truncation = _layout(
        "Which text is cut in rows that are too long.",
        "longest_first",
        taken_with=("pad", "seq2seq", "tokens", "preference"),
        fingerprint="always",
    )
    bucket_lengths: str | tuple[int, ...] | None = _pad(
        "Several row lengths, each with its own shards, with pad; auto:K chooses K lengths.",
        None,
        metavar="N,N,…|auto:K",
        taken_with=("pad",),
    )
    stride: int | None = _pad(
        "Tokens that windows of a long row share, with pad or qa.", None, least=0, taken_with=("pad", "qa")
    )
    special_tokens: SpecialTokens = _joined(
        "What is put around each document; tokenizer: what it puts around one text.",
        "eos",
        taken_with=("concat", "pack"),
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
        "Documents that share a row at most, with --layout pack.", None, least=1, taken_with=("pack",)
    )
    fim_rate: float = _joined(
        "Share of documents to rewrite for fill-in-the-middle.",
        0.0,
        least=0,
        most=1,
        remedy="write 0.5 for half of the documents",
        taken_with=("concat", "pack"),
    )
    fim_spm_rate: float = _joined(
        "Share of rewritten documents with the suffix first.",
        0.5,
        least=0,
        most=1,
        remedy="write 0.5 for half of them",
        taken_with=("concat", "pack"),
    )
    fim_tokens: str | None = _joined(
        "Sentinel tokens of fill-in-the-middle. Default: those of known vocabularies.",
        None,
        metavar="PREFIX,SUFFIX,MIDDLE",
        taken_with=("concat", "pack"),
    )
    chat_template: str | None = _template(
        "One of the tokenizer's chat templates, chatml, or a file. Default: the tokenizer's choice.",
        None,
        metavar="NAME_OR_FILE",
    )
    chat_date: str | None = _template("Date for chat templates that write today's date.", None, metavar="DATE")
    chat_options: tuple[str, ...] = _template(
        "Variable of the chat template, such as enable_thinking=false.", (), flags="--chat-option", metavar="KEY=VALUE"
    )
    learn: Learn | None = _chat(
        "Learn all answers, the last one, or each in a row of its own that ends with it. Default: all, of prompt and "
        "completion the completion's.",
        None,
        brief="Answers of a chat to learn.",
    )
    learn_whole_turns: bool = _chat("Learn all of a turn behind its role, up to the next, as TRL does.", False)
    learn_not: LearnNot | None = _chat("Parts of answers that are not learned.", None)
    pack_rows: bool = _chat("Pack several conversations into a row.", False)
    target_length: int | None = _seq2seq(
        "Tokens of a target. Default: as --max-length.", None, least=1, most=MOST_TOKENS
    )
    input_prefix: str = _seq2seq("Put before each text.", "", metavar="TEXT")
    label_all_tokens: bool = _tokens("Label all tokens of a word, not only the first.", False)

    def __post_init__(self) -> None:
        check(self)
        require_taken(self, "--layout", self.name)
        if self.stride is not None and self.max_length is not None and self.stride >= self.max_length:
            raise ConfigError(
                f"--stride {self.stride} with --max-length {self.max_length}, expected less: each window "
                "must begin after the one before",
                remedy="give for example a quarter of --max-length",
            )
        if (
            self.name == "pad"
            and self.stride is not None
            and (self.bucket_lengths or self.truncation != "longest_first")
        ):
            raise ConfigError(
                "--stride with --truncation or --bucket-lengths: it splits a text into windows of one length",
                remedy="leave one of them out",
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
        """The row lengths if there are several; empty until `auto:K` is resolved."""
        return self.bucket_lengths if isinstance(self.bucket_lengths, tuple) else ()

    def non_default_options(self) -> dict[str, Any]:
        """Return the layout options that differ from their defaults, as listed in the manifest."""
        found = fingerprint_items(self).items()
        return {name: each for name, each in found if name in LAYOUT_OPTIONS and each != getattr(LayoutConfig, name)}


# Options that only some layouts take.
LAYOUT_OPTIONS = tuple(each.field for each in declared(LayoutConfig) if each.taken_with)


def _require_date(text: str) -> None:
    try:
        # fromisoformat accepts more forms from Python 3.11 on.
        if datetime.date.fromisoformat(text).isoformat() == text:
            return
    except ValueError:
        pass
    raise ConfigError(f"--chat-date {text!r}, expected a date such as 2024-07-26", remedy="write it as YYYY-MM-DD")
