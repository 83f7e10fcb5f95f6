"""What `prep-tfrecords tokenizer` may be asked for: a kind, a style that goes with it, a size, and where to write."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from pipelines.prepare.options.limits import MOST_TOKENS, MOST_WORKERS, require_at_most
from pipelines.prepare.options.source_config import SourceConfig
from tfrecord_io.errors import ConfigError

__all__ = ["KINDS", "STYLES", "STYLES_OF", "Kind", "Style", "TokenizerRequest"]

Kind = Literal["unigram", "bpe", "byte-bpe", "wordpiece"]
Style = Literal["bert", "roberta", "gpt2", "t5", "llama", "albert"]
KINDS: tuple[str, ...] = get_args(Kind)
STYLES: tuple[str, ...] = get_args(Style)

# The styles of each kind, its default first: those whose published models have such a vocabulary.
STYLES_OF: dict[Kind, tuple[Style, ...]] = {
    "unigram": ("albert", "t5"),
    "bpe": ("llama",),
    "byte-bpe": ("gpt2", "roberta", "llama"),
    "wordpiece": ("bert",),
}
_WITH_CASE_OPTION: tuple[Style, ...] = ("bert", "albert")
_MOST_VOCABULARY = 1 << 22


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerRequest:
    """A tokenizer to train. Of what is None, the style decides.

    `style` None becomes the kind's own. `special_tokens`: further ones, besides the style's. `min_frequency`: how often
    a pair must occur to be merged. `limit_alphabet`: the most characters to have. `max_length`: the model's limit, in
    tokens. `chat_template`: its text. `evaluation_rows`: rows that are kept out of the training, and measured.
    `sample_rows` or `sample_bytes`: learn from so many rows, or from rows with about so much text.
    """

    source: SourceConfig
    output: str
    kind: Kind
    vocab_size: int
    style: Style | None = None
    special_tokens: tuple[str, ...] = ()
    min_frequency: int = 0
    limit_alphabet: int | None = None
    max_length: int | None = None
    chat_template: str | None = None
    lowercase: bool | None = None
    evaluation_rows: int = 1000
    sample_rows: int | None = None
    sample_bytes: int | None = None
    overwrite: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        if not self.output:
            raise ConfigError("--output is empty, expected a folder or a gs:// address", remedy="give --output DIR")
        if self.style is None:
            object.__setattr__(self, "style", STYLES_OF[self.kind][0])
        self._check_style()
        self._check_numbers()
        if self.kind == "unigram" and (self.min_frequency or self.limit_alphabet is not None):
            raise ConfigError(
                "--min-frequency or --limit-alphabet with --kind unigram, which merges no pairs",
                remedy="leave them out, or choose another --kind",
            )
        if self.kind == "byte-bpe" and self.limit_alphabet is not None:
            raise ConfigError(
                "--limit-alphabet with --kind byte-bpe, whose alphabet is the 256 bytes",
                remedy="leave it out, or choose another --kind",
            )
        for token in self.special_tokens:
            if not token.strip() or self.special_tokens.count(token) > 1:
                raise ConfigError(
                    f"--special-token {token!r} is blank, or given twice", remedy="give each special token once"
                )

    @property
    def chosen_style(self) -> Style:
        """The style, the kind's own if none was chosen."""
        return self.style or STYLES_OF[self.kind][0]

    def _check_style(self) -> None:
        style = self.chosen_style
        if style not in STYLES_OF[self.kind]:
            kinds = [kind for kind, styles in STYLES_OF.items() if style in styles]
            raise ConfigError(
                f"--style {style} with --kind {self.kind}: its models have no such vocabulary",
                remedy=f"give --kind {' or '.join(kinds)}, or --style {' or '.join(STYLES_OF[self.kind])}",
            )
        if self.lowercase is not None and style not in _WITH_CASE_OPTION:
            raise ConfigError(
                f"--lowercase or --no-lowercase with --style {style}, whose models keep the case of letters",
                remedy=f"leave it out, or choose --style {' or '.join(_WITH_CASE_OPTION)}; a --map can change texts",
            )

    def _check_numbers(self) -> None:
        least = {
            "--vocab-size": (self.vocab_size, 1),
            "--min-frequency": (self.min_frequency, 0),
            "--limit-alphabet": (self.limit_alphabet, 1),
            "--max-length": (self.max_length, 1),
            "--evaluation-rows": (self.evaluation_rows, 0),
            "--sample": (self.sample_rows, 1),
            "--workers": (self.workers, 1),
        }
        for option, (value, smallest) in least.items():
            if value is not None and value < smallest:
                raise ConfigError(f"{option} {value}, expected at least {smallest}", remedy="give a larger number")
        remedy = "give a smaller number"
        require_at_most("--vocab-size", self.vocab_size, _MOST_VOCABULARY, remedy=remedy)
        require_at_most("--max-length", self.max_length or 1, MOST_TOKENS, remedy=remedy)
        require_at_most("--workers", self.workers or 1, MOST_WORKERS, remedy="leave --workers out")
