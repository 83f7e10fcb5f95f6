"""Small tokenizers of every kind in use, each trained on demand.

    byte-level BPE      by pattern (GPT-2, Llama 3, ...), by normalizer, and by properties of their added tokens
    SentencePiece BPE   byte fallback; a normalizer or Metaspace inserts the marker, in each possible way
    WordPiece           the tests' own, and more settings of BertNormalizer
    Unigram             normalizers and pre-tokenizers as `transformers` builds them for T5, XLM-R, ALBERT and others,
                        "converted": from a SentencePiece file; and from training with `tokenizers` ("nmt nfkc")

They are trained on text of many scripts with many merges, so that a wrong word boundary shows: with a vocabulary of
single bytes, every split would give the same ids. The Unigram kinds share one vocabulary, with an entry for each byte,
so that any difference in normalized text shows. Nothing is downloaded.
"""

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipelines.prepare.tokenize.engines import package_engines as patterns
from tests.support import texts
from tests.support.charsmaps import nmt_nfkc
from tests.support.tokenizers_zoo import FAST_KINDS, Zoo

Maker = Callable[[], Any]
Step = Mapping[str, Any]

ADDED = ("<tag>", "<tag>more", "word", "wor", " lead", "trail ", "  ", "é!", "\n\n", "中文", "<extra_id_0>")
_VOCAB_SIZE = 6_000
_REPEATS = 4
_END = "<|endoftext|>"
_PIECES_OF_VOCABULARY = 60
# Words across the boundaries of a pattern: each becomes a merge, if the pattern allows it.
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
    return KINDS[kind]()


def _wrapped(backend: Tokenizer, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=10**9, **options)


@functools.cache
def _zoo() -> Zoo:
    return Zoo(Path(tempfile.mkdtemp(prefix="qualifying-")))


# --- byte-level BPE ---------------------------------------------------------------------------------------------------


def _trained(pre_tokenizer: Any = None, normalizer: Any = None, **model: Any) -> Tokenizer:
    """With GPT-2's pattern, or another pre-tokenizer."""
    backend = Tokenizer(models.BPE(**model))
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
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


def _split(*expressions: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in expressions]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _bpe(*expressions: str, pre_tokenizer: Maker | None = None, nfc: bool = False, **model: Any) -> Maker:
    """GPT-2's kind, or with these patterns."""

    def make() -> Any:
        before = _split(*expressions) if expressions else pre_tokenizer() if pre_tokenizer else None
        backend = _trained(before, normalizers.NFC() if nfc else None, **model)
        return _wrapped(backend, eos_token=_END, pad_token=_END)

    return make


def _digits() -> Any:
    digits, level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([digits, level])


def _roberta() -> Any:
    backend = _trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    sep, cls = ((token, backend.get_vocab()[token]) for token in ("</s>", "<s>"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=True)
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    return _wrapped(backend, **names, pad_token="<pad>", unk_token="<unk>", mask_token="<mask>")


def _modernbert() -> Any:
    """GPT-NeoX and OLMo: NFC, GPT-2's pattern, runs of spaces as separate tokens."""
    backend = _trained(normalizer=normalizers.NFC())
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


def _mixed_added() -> Any:
    """Every way of flagging a token but rstrip, on contents that overlap and that begin with white space."""
    backend = _trained(normalizer=normalizers.NFC())
    contents = ("<tag>", "<tag>more", "<ta", "word", "wor", " lead", "trail ", "K1", "é!", "\n\n\n", "中文", "  ", ">m")
    for index, content in enumerate(contents):
        flags = {"lstrip": index % 2 == 0, "normalized": index % 5 < 2}
        backend.add_tokens([AddedToken(content, single_word=index % 4 == 1, special=index % 7 < 3, **flags)])
    return _wrapped(backend, eos_token=_END, pad_token=_END)


# --- SentencePiece's BPE ----------------------------------------------------------------------------------------------


@functools.cache
def _sentencepiece_merges() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Pieces and merges learnt within words, as SentencePiece does."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    merges = tuple((left, right) for left, right in learnt["merges"])
    return tuple(sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)), merges


def _llama2(pre_tokenizer: Maker | None = None, *, prepends: bool, added: str = "", **model: Any) -> Maker:
    """`prepends`: the normalizer puts a mark before each text. `added`: a flag of tokens that are added."""

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
        mark = normalizers.Replace(" ", "▁")
        if prepends:
            backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark])
        if pre_tokenizer is not None:
            backend.pre_tokenizer = pre_tokenizer()
            if isinstance(backend.pre_tokenizer, pre_tokenizers.Split):
                backend.normalizer = mark
        flags = {"normalized": False, **({added: True} if added else {})}
        backend.add_special_tokens([AddedToken(name, special=True, **flags) for name in ("<unk>", "<s>", "</s>")])
        if added:
            backend.add_tokens([AddedToken(name, **flags) for name in ("<tag>", "<tag>more", "word", "  ", "é!")])
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
        return _wrapped(backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")

    return make


def _marks(scheme: str, *, split: bool = False) -> Maker:
    return lambda: pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


# --- WordPiece and Unigram --------------------------------------------------------------------------------------------


def _bert(**options: bool) -> Maker:
    """BERT's tokenizer of the tests with another normalizer: its vocabulary has no other pieces, which is fine here."""

    def make() -> Any:
        made = _zoo().tokenizer("wordpiece_uncased")
        made.backend_tokenizer.normalizer = normalizers.BertNormalizer(**options)
        return made

    return make


def altered(
    state: Mapping[str, Any],
    *,
    normalizer: Step | None,
    pre_tokenizer: Step,
    added: list[AddedToken] | None = None,
    byte_fallback: bool = False,
    **model: Any,
) -> Any:
    """The Unigram of a tokenizer.json with another normalizer and pre-tokenizer, and more tokens."""
    vocabulary = list(state["model"]["vocab"])
    if byte_fallback:
        vocabulary += [[f"<0x{byte:02X}>", -12.5] for byte in range(256)]
    changed = {"vocab": vocabulary, "byte_fallback": byte_fallback, **model}
    state = {**state, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": {**state["model"], **changed}}
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_tokens(added or [])
    return _wrapped(backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def metaspace(scheme: str = "always", *, split: bool = True) -> Step:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def white_split(scheme: str = "always") -> Step:
    return {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace(scheme)]}


def _chain(*steps: Step | str) -> Step:
    return {"type": "Sequence", "normalizers": [{"type": step} if isinstance(step, str) else step for step in steps]}


def _replace(pattern: str, content: str) -> Step:
    return {"type": "Replace", "pattern": {"Regex" if "{" in pattern else "String": pattern}, "content": content}


def _strip(*, left: bool, right: bool) -> Step:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def _normalizers() -> dict[str, tuple[Step | None, Step]]:
    charsmap = {"type": "Precompiled", "precompiled_charsmap": nmt_nfkc()}
    quotes = (_replace("``", '"'), _replace("''", '"'))
    plain = ("NFKD", "StripAccents", "Lowercase", charsmap)
    one_space, one_mark = _replace(" {2,}", " "), _replace(" {2,}", "▁")
    return {
        "t5": (charsmap, white_split()),
        "t5 converted": (_chain(charsmap, _strip(left=False, right=True), one_mark), metaspace()),
        "t5 first": (_chain(charsmap, _strip(left=False, right=True), one_mark), metaspace("first")),
        "pegasus": (_chain(charsmap, one_space), metaspace()),
        "albert": (_chain(*quotes, *plain), white_split()),
        "albert converted": (_chain(*quotes, *plain, one_space), metaspace()),
        "rembert": (_chain(*quotes, one_space, *plain), metaspace()),
        "deberta": (_chain("Lowercase", _strip(left=True, right=True), charsmap, one_space), metaspace()),
        "bigbird": (_chain(_strip(left=False, right=False), one_mark), metaspace()),
        "nmt nfkc": (_chain("Nmt", "NFKC", one_space), metaspace()),
        "charsmap never": (charsmap, metaspace("never")),
        "nfc": (_chain(_strip(left=True, right=True), "NFC"), white_split("never")),
        "nfd": (_chain("NFD"), metaspace()),
        "none": (None, metaspace()),
    }


NORMALIZERS = _normalizers()


def _unigram(name: str, *, flag: str = "") -> Maker:
    """With added tokens of this flag, or with XLM-R's mask."""

    def make() -> Any:
        state = json.loads((_zoo().path("unigram") / "tokenizer.json").read_text(encoding="utf-8"))
        added = [AddedToken(content, normalized=False, **{flag: True}) for content in ADDED if flag]
        mask = [AddedToken("<mask>", lstrip=True, normalized=True)]
        normalizer, pre_tokenizer = NORMALIZERS[name]
        return altered(
            state, normalizer=normalizer, pre_tokenizer=pre_tokenizer, added=added or mask, byte_fallback=True
        )

    return make


KINDS: dict[str, Maker] = {
    "gpt2": _bpe(),
    "gpt2 as split": _bpe(_GPT2),
    "roberta": _roberta,
    "modernbert": _modernbert,
    "llama3": _bpe(patterns.LLAMA3, ignore_merges=True),
    "cl100k": _bpe(_CL100K),
    "qwen2": _bpe(patterns.QWEN2, nfc=True),
    "qwen35": _bpe(patterns.QWEN35, nfc=True),
    "o200k": _bpe(patterns.O200K),
    "deepseek": _bpe(*patterns.DEEPSEEK),
    "tekken": _bpe(patterns.TEKKEN, ignore_merges=True),
    "starcoder": _bpe(pre_tokenizer=_digits),
    "own pattern": _bpe(_OWN),
    "added mixed": _mixed_added,
    "llama2": _llama2(prepends=True),
    **{f"llama2 {scheme}": _llama2(_marks(scheme), prepends=False) for scheme in ("always", "first", "never")},
    "llama2 split": _llama2(_marks("always", split=True), prepends=False),
    "gemma": _llama2(lambda: pre_tokenizers.Split(" ", behavior="merged_with_previous"), prepends=False),
    **{
        f"llama2 added {flag}": _llama2(prepends=True, added=flag)
        for flag in ("lstrip", "rstrip", "single_word", "normalized")
    },
    "llama2 not fused": _llama2(prepends=True, fuse_unk=False),
    "llama2 ignore_merges": _llama2(prepends=True, ignore_merges=True),
    "llama2 no unknown": _llama2(_marks("always"), prepends=False, unk_token=None),
    "bert, all off": _bert(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False),
    "bert, accents": _bert(strip_accents=False, lowercase=True),
    "bert, no accents": _bert(strip_accents=True, lowercase=False),
    **{f"zoo {kind}": functools.partial(lambda kind: _zoo().tokenizer(kind), kind) for kind in FAST_KINDS},
    **{f"unigram {name}": _unigram(name) for name in NORMALIZERS},
    **{
        f"unigram added {flag}": _unigram("t5 converted", flag=flag)
        for flag in ("special", "lstrip", "rstrip", "single_word")
    },
}
