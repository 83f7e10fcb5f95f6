"""Tokenizer styles: the settings of published models without their vocabularies (docs/how-to/train-a-tokenizer.md).

NFKD and NFKC replace the compiled character maps of ALBERT and T5, which `tokenizers` cannot create.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipelines.prepare.options.tokenizer_options import Kind, Style
from pipelines.prepare.tokenize.engines.package_engines import LLAMA3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StyleTemplate:
    """Everything about a tokenizer of `tokenizers` except its trained vocabulary.

    `first`, `last`: special tokens with the lowest and the highest ids. `reserved`: ordinary tokens; their ids follow
    `first`. `roles`: special tokens by role, such as `pad_token`. `row`, `pair`: special tokens around one text and
    around two, in the notation of `TemplateProcessing`; '' with a `post_processor`. `model`: keyword arguments of the
    model.
    """

    kind: Kind
    first: tuple[str, ...]
    roles: Mapping[str, str]
    row: str = ""
    pair: str = ""
    last: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None
    post_processor: Any = None
    max_length: int | None = None
    padding_side: str = "right"
    input_names: tuple[str, ...] = ("input_ids", "attention_mask")
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def leading(self) -> tuple[str, ...]:
        """Tokens with the lowest ids, special or not."""
        return (*self.first, *self.reserved)

    @property
    def special(self) -> tuple[str, ...]:
        return (*self.first, *self.last)

    @property
    def alphabet(self) -> list[str]:
        """Characters that the vocabulary must contain: one per byte in byte-level BPE, else none."""
        return sorted(pre_tokenizers.ByteLevel.alphabet()) if self.kind == "byte-bpe" else []

    def splitter(self) -> Tokenizer:
        """Return a tokenizer with an empty model, to normalize and pre-tokenize texts."""
        return self._around(models.BPE())

    def complete(self, model: Any) -> Tokenizer:
        """Return the complete tokenizer. `model`: the trained model, with all tokens except `last`."""
        tokenizer = self._around(model)
        mask = self.roles.get("mask_token")
        tokenizer.add_special_tokens(
            [AddedToken(token, lstrip=token == mask, special=True, normalized=False) for token in self.special]
        )
        if self.post_processor is not None:
            tokenizer.post_processor = self.post_processor
        elif self.row:
            names = sorted({piece.partition(":")[0] for piece in f"{self.row} {self.pair}".split()} - {"$A", "$B"})
            tokenizer.post_processor = processors.TemplateProcessing(
                single=self.row, pair=self.pair, special_tokens=[(name, tokenizer.get_vocab()[name]) for name in names]
            )
        return tokenizer

    def _around(self, model: Any) -> Tokenizer:
        tokenizer = Tokenizer(model)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if getattr(self, part) is not None:
                setattr(tokenizer, part, getattr(self, part))
        return tokenizer


def template_of(
    style: Style, kind: Kind, *, lowercase: bool = True, special_tokens: tuple[str, ...] = ()
) -> StyleTemplate:
    """Return the template of a style. `special_tokens`: the user's tokens; their ids follow the style's own."""
    template = _TEMPLATES[style, kind]
    if not lowercase and style in _CASED:
        template = dataclasses.replace(template, normalizer=_CASED[style])
    own = tuple(token for token in special_tokens if token not in (*template.leading, *template.last))
    return dataclasses.replace(template, first=(*template.first, *own))


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


_CLS_AND_SEP: dict[str, Any] = {
    "row": "[CLS]:0 $A:0 [SEP]:0",
    "pair": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    "max_length": 512,
    "input_names": ("input_ids", "token_type_ids", "attention_mask"),
}
_QUOTES = (normalizers.Replace("``", '"'), normalizers.Replace("''", '"'))
_LLAMA3_NAMES = ("end_of_text", "finetune_right_pad_id", "start_header_id", "end_header_id", "eot_id")
_CASED = {
    "bert": normalizers.BertNormalizer(lowercase=False),
    "albert": normalizers.Sequence([*_QUOTES, normalizers.NFKC()]),
}
_TEMPLATES: dict[tuple[Style, Kind], StyleTemplate] = {
    ("bert", "wordpiece"): StyleTemplate(
        kind="wordpiece",
        first=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        roles=_roles(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]"),
        normalizer=normalizers.BertNormalizer(lowercase=True),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(prefix="##"),
        **_CLS_AND_SEP,
    ),
    ("albert", "unigram"): StyleTemplate(
        kind="unigram",
        first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        roles=_roles(bos="[CLS]", eos="[SEP]", pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]"),
        normalizer=normalizers.Sequence(
            [*_QUOTES, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        ),
        # "always" would add a space mark after each special token, even before a full stop.
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoder=decoders.Metaspace(),
        **_CLS_AND_SEP,
    ),
    ("t5", "unigram"): StyleTemplate(
        kind="unigram",
        first=("<pad>", "</s>", "<unk>"),
        last=tuple(f"<extra_id_{number}>" for number in reversed(range(100))),
        roles=_roles(eos="</s>", unk="<unk>", pad="<pad>"),
        row="$A:0 </s>:0",
        pair="$A:0 </s>:0 $B:0 </s>:0",
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
        max_length=512,
    ),
    ("roberta", "byte-bpe"): StyleTemplate(
        kind="byte-bpe",
        first=("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        roles=_roles(bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>"),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post_processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False),
        max_length=512,
    ),
    ("gpt2", "byte-bpe"): StyleTemplate(
        kind="byte-bpe",
        first=("<|endoftext|>",),
        roles=_roles(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>"),
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(trim_offsets=False),
        max_length=1024,
    ),
    ("llama", "bpe"): StyleTemplate(  # Llama 2
        kind="bpe",
        first=("<unk>", "<s>", "</s>"),
        reserved=tuple(f"<0x{byte:02X}>" for byte in range(256)),
        roles=_roles(bos="<s>", eos="</s>", unk="<unk>"),
        row="<s>:0 $A:0",
        pair="<s>:0 $A:0 <s>:1 $B:1",
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoder=decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        padding_side="left",
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
    ),
    ("llama", "byte-bpe"): StyleTemplate(  # Llama 3
        kind="byte-bpe",
        first=("<|begin_of_text|>", *(f"<|{name}|>" for name in _LLAMA3_NAMES)),
        roles=_roles(bos="<|begin_of_text|>", eos="<|end_of_text|>", pad="<|finetune_right_pad_id|>"),
        row="<|begin_of_text|>:0 $A:0",
        pair="<|begin_of_text|>:0 $A:0 <|begin_of_text|>:1 $B:1",
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        decoder=decoders.ByteLevel(),
        padding_side="left",
        model={"ignore_merges": True},
    ),
}
