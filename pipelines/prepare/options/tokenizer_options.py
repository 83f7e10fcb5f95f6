"""Options of `prep-tfrecords tokenizer`."""

import dataclasses
from typing import Any, Literal

from pipelines.option_fields import check, option, require_taken
from pipelines.prepare.options.addresses import ADDRESS
from pipelines.prepare.options.config import WORKERS, SourceConfig
from pipelines.prepare.options.layout_config import LENGTH
from pipelines.prepare.options.paths import read_template
from tfrecord_io.errors import ConfigError

Kind = Literal["unigram", "bpe", "byte-bpe", "wordpiece"]
Style = Literal["bert", "roberta", "gpt2", "t5", "llama", "albert"]

# Styles by kind of tokenizer, if published models have this combination; the kind's default comes first.
STYLES_OF: dict[Kind, tuple[Style, ...]] = {
    "unigram": ("albert", "t5"),
    "bpe": ("llama",),
    "byte-bpe": ("gpt2", "roberta", "llama"),
    "wordpiece": ("bert",),
}
_WITH_CASE_OPTION: tuple[Style, ...] = ("bert", "albert")
_VOCABULARY: dict[str, Any] = {"least": 1, "most": 1 << 22, "remedy": "give a number within these bounds"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerRequest:
    """Options of `prep-tfrecords tokenizer`. `chat_template`: the template's text, not its file."""

    source: SourceConfig
    output: str = option(f"Folder or {ADDRESS} address of the tokenizer.", flags="--output -o", metavar="DIR")
    kind: Kind = option("Algorithm that splits words into tokens.")
    vocab_size: int = option("Number of tokens, including special ones.", **_VOCABULARY)
    style: Style | None = option(
        "Model whose normalizer, special tokens and rows are used. Default: bert for wordpiece, gpt2 for byte-bpe, "
        "llama for bpe, albert for unigram.",
        None,
    )
    special_tokens: tuple[str, ...] = option(
        "Additional special token. Repeatable.", (), flags="--special-token", metavar="TEXT"
    )
    min_frequency: int = option(
        "Minimum number of times that a merged pair occurs.", 0, least=0, taken_with=("bpe", "byte-bpe", "wordpiece")
    )
    max_length: int | None = option("Maximum number of tokens in a row. Default: the style's.", None, **LENGTH)
    chat_template: str | None = option("File with a chat template in Jinja.", None, metavar="FILE", parse=read_template)
    lowercase: bool | None = option(
        "Lowercase texts, or keep their case, for bert and albert. Default: lowercase.",
        None,
        flags="--lowercase/--no-lowercase",
    )
    sample: int | None = option(
        "Train on this many evenly spaced rows, if all rows exceed the memory.", None, metavar="ROWS", least=1
    )
    workers: int | None = option("Threads. Default: one per core.", None, **WORKERS)

    def __post_init__(self) -> None:
        if not self.output:
            raise ConfigError(f"--output is empty, expected a folder or {ADDRESS}", remedy="give --output DIR")
        check(self)
        style = self.chosen_style
        if style not in STYLES_OF[self.kind]:
            kinds = [kind for kind, styles in STYLES_OF.items() if style in styles]
            raise ConfigError(
                f"--style {style} with --kind {self.kind}: models of this style have no such vocabulary",
                remedy=f"give --kind {' or '.join(kinds)}, or --style {' or '.join(STYLES_OF[self.kind])}",
            )
        if self.lowercase is not None and style not in _WITH_CASE_OPTION:
            raise ConfigError(
                f"--lowercase or --no-lowercase with --style {style}: models of this style always keep the case",
                remedy=f"leave it out, or choose --style {' or '.join(_WITH_CASE_OPTION)}; a --map can lowercase texts",
            )
        require_taken(self, "--kind", self.kind)
        for token in self.special_tokens:
            if not token.strip():
                raise ConfigError(f"--special-token {token!r} is blank", remedy="give a token with visible characters")
            if self.special_tokens.count(token) > 1:
                raise ConfigError(f"--special-token {token!r} is given twice", remedy="give each special token once")

    @property
    def chosen_style(self) -> Style:
        return self.style or STYLES_OF[self.kind][0]
