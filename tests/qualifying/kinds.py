"""Tokenizers of every kind in use, small ones, each trained when it is asked for.

    byte-level BPE      by pattern (GPT-2, Llama 3, ...), by normalizer, and by what their added tokens are like
    SentencePiece BPE   byte fallback; the marker put in by a normalizer or by Metaspace, in each of its ways
    WordPiece           those of the tests, and more ways of BertNormalizer
    Unigram             those of the tests, and more normalizers (`unigram_kinds`)

They are trained on text of many scripts with many merges, so that a wrong word boundary shows: a vocabulary that knows
single bytes only would give the same ids for every way of splitting. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipelines.prepare.tokenize.engines import package_engines as patterns
from tests.qualifying import unigram_kinds
from tests.support import texts
from tests.support.tokenizers_zoo import FAST_KINDS, Zoo

__all__ = ["KINDS", "material", "tokenizer"]

_VOCAB_SIZE = 6_000
_REPEATS = 4
_END = "<|endoftext|>"
_PIECES_OF_VOCABULARY = 60
# Words that run over what a pattern should keep apart: each becomes a merge, if the pattern lets it.
_TEMPTING = [
    "don't DON'T we'll we'LL it's IT'S I'ſ you're they've I'd I'm o'clock l'été 'tis ''s '' 'S",
    "a1 1a 12 123 1234 12345 3.14 1,000 x² ½a ٣٤ a٣ १२ Ⅷ Ⅷa 1st 2nd v2.0 0x1F 1e-10",
    "a\n\nb\r\n\r\nc\n \n d  \n\te   f\t\tg \n\n\n  h \u00a0 i\u3000\u3000j \u2003k",
    "e\u0301te\u0301 a\u0308 ा ि\u094d \u0e01\u0e33 \u05d0\u05b8 \u064e\u0651 \U0001d165 \u20dd",
    "...!!! ?!? --- === /// //\n */ {\n} (); [] <> ## $$ %% && **\n --\n\n !\r\n ./a _a a_ .a a. -a",
    "camelCase HTTPServer iPhone McDonald ǅ ǅungla ʰa aʰ ªº ΑβΓ ЁжЖ",
]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
# Of no tokenizer in use: whether an engine takes expressions as they come.
_OWN = r"'(?:[smdt]|ll|re|ve)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"

Maker = Callable[[], Any]


@functools.cache
def _corpus() -> tuple[str, ...]:
    once = [*texts.sentences(60, seed=40), *texts.mutated(60, seed=41)]
    often = [*texts.MULTI_SCRIPT, *(text for text in texts.HOSTILE if len(text) < 1_000), *_TEMPTING]
    return (*once, *(often * _REPEATS))


def material(tokenizer: Any) -> list[str]:
    """Strings that mean something to this tokenizer: its added tokens, and entries of its vocabulary as spelt there."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values()]
    vocabulary = sorted(tokenizer.get_vocab())
    step = max(1, len(vocabulary) // _PIECES_OF_VOCABULARY)
    return [*added, *added, *vocabulary[::step], "<0x41>", "<0xE4>", "▁", "Ġ", "##a", " ▁", "▁▁"]


def tokenizer(kind: str) -> Any:
    """A new tokenizer of that kind, as `transformers` opens it."""
    return KINDS[kind]()


def _wrapped(backend: Tokenizer, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **options)


def _trained(pre_tokenizer: Any, normalizer: Any = None, **model: Any) -> Tokenizer:
    """Byte-level BPE."""
    backend = Tokenizer(models.BPE(**model))
    backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    return backend


def _byte_level(*, prefix: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=True)


def _split(*expressions: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in expressions]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _bpe(pre_tokenizer: Maker, normalizer: Maker | None = None, **model: Any) -> Maker:
    def make() -> Any:
        backend = _trained(pre_tokenizer(), normalizer() if normalizer else None, **model)
        return _wrapped(backend, eos_token=_END, pad_token=_END)

    return make


def _roberta(*, prefix: bool) -> Maker:
    def make() -> Any:
        backend = _trained(_byte_level(prefix=prefix))
        backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
        backend.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
        sep, cls = ((token, backend.get_vocab()[token]) for token in ("</s>", "<s>"))
        backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=prefix)
        names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
        return _wrapped(backend, **names, pad_token="<pad>", unk_token="<unk>", mask_token="<mask>")

    return make


def _with_added(*, special: bool = True, nfc: bool = False, contents: tuple[str, ...] = (), **flags: bool) -> Maker:
    """GPT-2 with added tokens of one sort: signs, words, one inside another, one that NFC can bring about."""
    contents = contents or ("<tag>", "<tag>more", "<ta", "word", "wor", " lead", "trail ", "K1", "é!", "\n\n\n", "中文")

    def make() -> Any:
        backend = _trained(_byte_level(), normalizers.NFC() if nfc else None)
        tokens = [AddedToken(content, special=special, **{"normalized": False, **flags}) for content in contents]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)
        return _wrapped(backend, eos_token=_END, pad_token=_END)

    return make


def _mixed_added() -> Any:
    """Every way of flagging a token but rstrip, on contents that overlap and that begin with white space."""
    backend = _trained(_byte_level(), normalizers.NFC())
    contents = ("<tag>", "<tag>more", "<ta", "word", "wor", " lead", "trail ", "K1", "é!", "\n\n\n", "中文", "  ", ">m")
    for index, content in enumerate(contents):
        flags = {"lstrip": index % 2 == 0, "normalized": index % 5 < 2}
        backend.add_tokens([AddedToken(content, single_word=index % 4 == 1, special=index % 7 < 3, **flags)])
    return _wrapped(backend, eos_token=_END, pad_token=_END)


def _numbered_anew(make: Maker, **model: Any) -> Maker:
    """Ids in another order than merges, as RoBERTa has them, and entries that no merge leads to, as Llama 3 has."""

    def made() -> Any:
        parts = json.loads(make().backend_tokenizer.to_str())
        vocabulary = parts["model"]["vocab"]
        for piece in ("ĠtheĠ", "zzzz", "ĠNaïve", "ello", "'ſ", "12345678", "ĊĊa", "xyz"):
            vocabulary.setdefault(piece, len(vocabulary))
        free = [number for number in range(len(vocabulary)) if number != vocabulary[_END]]
        others = [piece for piece in vocabulary if piece != _END]
        random.Random(5).shuffle(others)
        parts["model"]["vocab"] = {_END: vocabulary[_END], **dict(zip(others, free, strict=True))}
        parts["model"].update(model)
        return _wrapped(Tokenizer.from_str(json.dumps(parts)), eos_token=_END, pad_token=_END)

    return made


def _modernbert() -> Any:
    """GPT-NeoX and OLMo: NFC, GPT-2's pattern, runs of spaces as tokens of their own."""
    backend = _trained(_byte_level(), normalizers.NFC())
    backend.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    backend.add_tokens([AddedToken(name, normalized=True) for name in ("|||EMAIL_ADDRESS|||", "|||IP_ADDRESS|||")])
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
    backend.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False, special=True)])
    ends = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return _wrapped(backend, **names, mask_token="[MASK]")


def _split_special() -> Any:
    made = _with_added()()
    made.split_special_tokens = True
    return made


def _digits() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


@functools.cache
def _sentencepiece_merges() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Pieces and merges learnt within words, as SentencePiece does."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    merges = tuple((left, right) for left, right in learnt["merges"])
    return tuple(sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)), merges


def _sentencepiece(
    normalizer: Maker | None, pre_tokenizer: Maker | None, added: dict[str, bool] | None = None, **model: Any
) -> Maker:
    def make() -> Any:
        learnt, merges = _sentencepiece_merges()
        spaces = ["▁" * count for count in range(2, 17)]
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learnt]
        pieces += [run for run in spaces if run not in learnt]
        joined = tuple(("▁" * (count - 1), "▁") for count in range(2, 17))
        merges = (*merges, *(merge for merge in joined if merge not in merges))
        options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **model}
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges), **options))
        if normalizer is not None:
            backend.normalizer = normalizer()
        if pre_tokenizer is not None:
            backend.pre_tokenizer = pre_tokenizer()
        flags = {"normalized": False, **(added or {})}
        backend.add_special_tokens([AddedToken(name, special=True, **flags) for name in ("<unk>", "<s>", "</s>")])
        if added is not None:
            backend.add_tokens([AddedToken(name, **flags) for name in ("<tag>", "<tag>more", "word", "  ", "é!")])
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
        return _wrapped(backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")

    return make


def _marker(*, prepend: bool) -> Any:
    replace = normalizers.Replace(" ", "▁")
    return normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prepend else replace


def _metaspace(scheme: str, *, split: bool = False) -> Maker:
    return lambda: pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


def _bert(**options: bool) -> Maker:
    """BERT's tokenizer of the tests with another normalizer: its vocabulary has no other pieces, which is fine here."""

    def make() -> Any:
        made = _of_the_zoo("wordpiece_uncased")
        made.backend_tokenizer.normalizer = normalizers.BertNormalizer(**options)
        return made

    return make


def _unigram(name: str, *, flags: dict[str, bool] | None = None, byte_fallback: bool = True) -> Maker:
    """With added tokens of these flags, or with XLM-R's mask."""

    def make() -> Any:
        state = json.loads((_zoo().path("unigram") / "tokenizer.json").read_text(encoding="utf-8"))
        normalizer, pre_tokenizer = unigram_kinds.NORMALIZERS[name]
        added = [AddedToken(content, **{"normalized": False, **(flags or {})}) for content in unigram_kinds.ADDED]
        mask = [AddedToken("<mask>", lstrip=True, normalized=True)]
        return unigram_kinds.altered(
            state,
            normalizer=normalizer,
            pre_tokenizer=pre_tokenizer,
            added=mask if flags is None else added,
            byte_fallback=byte_fallback,
        )

    return make


@functools.cache
def _zoo() -> Zoo:
    return Zoo(Path(tempfile.mkdtemp(prefix="qualifying-")))


def _of_the_zoo(kind: str) -> Any:
    return _zoo().tokenizer(kind)


_BYTE_LEVEL: dict[str, Maker] = {
    "gpt2": _bpe(_byte_level),
    "gpt2 prefix": _bpe(functools.partial(_byte_level, prefix=True)),
    "gpt2 ignore_merges": _bpe(_byte_level, ignore_merges=True),
    "gpt2 nfkc": _bpe(_byte_level, normalizers.NFKC),
    "gpt2 as split": _bpe(lambda: _split(_GPT2)),
    "roberta": _roberta(prefix=False),
    "roberta prefix": _roberta(prefix=True),
    "modernbert": _modernbert,
    "llama3": _bpe(lambda: _split(patterns.LLAMA3), ignore_merges=True),
    "llama3 merges": _bpe(lambda: _split(patterns.LLAMA3)),
    "cl100k": _bpe(lambda: _split(_CL100K)),
    "qwen2": _bpe(lambda: _split(patterns.QWEN2), normalizers.NFC),
    "qwen35": _bpe(lambda: _split(patterns.QWEN35), normalizers.NFC),
    "o200k": _bpe(lambda: _split(patterns.O200K)),
    "deepseek": _bpe(lambda: _split(*patterns.DEEPSEEK)),
    "tekken": _bpe(lambda: _split(patterns.TEKKEN), ignore_merges=True),
    "starcoder": _bpe(_digits),
    "gpt2 numbered anew": _numbered_anew(_bpe(_byte_level)),
    "llama3 numbered anew": _numbered_anew(_bpe(lambda: _split(patterns.LLAMA3)), ignore_merges=True),
    "own pattern": _bpe(lambda: _split(_OWN)),
    "added special": _with_added(),
    "added plain": _with_added(special=False),
    "added lstrip": _with_added(lstrip=True),
    "added rstrip": _with_added(
        rstrip=True, contents=("<tag>", "<tag>more", "<ta", "word", "wor", "trail ", "K1", "é!", "中文")
    ),
    "added single_word": _with_added(single_word=True),
    "added normalized": _with_added(normalized=True),
    "added normalized nfc": _with_added(normalized=True, nfc=True),
    "added nfc": _with_added(nfc=True),
    "added mixed": _mixed_added,
    "added, split": _split_special,
}
_SENTENCEPIECE: dict[str, Maker] = {
    "llama2": _sentencepiece(lambda: _marker(prepend=True), None),
    "llama2 always": _sentencepiece(None, _metaspace("always")),
    "llama2 first": _sentencepiece(None, _metaspace("first")),
    "llama2 never": _sentencepiece(None, _metaspace("never")),
    "llama2 split": _sentencepiece(None, _metaspace("always", split=True)),
    "gemma": _sentencepiece(
        lambda: _marker(prepend=False), lambda: pre_tokenizers.Split(" ", behavior="merged_with_previous")
    ),
    **{
        f"llama2 added {flag}": _sentencepiece(lambda: _marker(prepend=True), None, {flag: True})
        for flag in ("lstrip", "rstrip", "single_word", "normalized")
    },
    "llama2 added": _sentencepiece(lambda: _marker(prepend=True), None, {}),
    "llama2 first added": _sentencepiece(None, _metaspace("first"), {}),
    "llama2 always added": _sentencepiece(None, _metaspace("always"), {}),
    "llama2 first normalized": _sentencepiece(None, _metaspace("first"), {"normalized": True}),
    "llama2 not fused": _sentencepiece(lambda: _marker(prepend=True), None, fuse_unk=False),
    "llama2 ignore_merges": _sentencepiece(lambda: _marker(prepend=True), None, ignore_merges=True),
    "llama2 no unknown": _sentencepiece(None, _metaspace("always"), unk_token=None),
    "llama2 no bytes": _sentencepiece(lambda: _marker(prepend=True), None, byte_fallback=False),
}
_OTHERS: dict[str, Maker] = {
    "bert, all off": _bert(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False),
    "bert, accents": _bert(strip_accents=False, lowercase=True),
    "bert, no accents": _bert(strip_accents=True, lowercase=False),
    **{f"zoo {kind}": functools.partial(_of_the_zoo, kind) for kind in FAST_KINDS},
}
_UNIGRAM: dict[str, Maker] = {
    **{f"unigram {name}": _unigram(name) for name in unigram_kinds.NORMALIZERS},
    "unigram no bytes": _unigram("t5 converted", byte_fallback=False),
    **{
        f"unigram added {flag}": _unigram("t5 converted", flags={flag: True})
        for flag in ("special", "lstrip", "rstrip", "single_word")
    },
    "unigram added, white": _unigram("albert", flags={}),
}
KINDS: dict[str, Maker] = {**_BYTE_LEVEL, **_SENTENCEPIECE, **_OTHERS, **_UNIGRAM}
