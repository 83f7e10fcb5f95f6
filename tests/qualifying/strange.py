"""Strange tokenizers: random combinations of everything in tokenizer.json, one for each seed and number.

    family          model                normalizer             pre-tokenizer
    byte level      BPE of bytes         none, NFC, any         GPT-2's pattern and other models'
    sentencepiece   BPE of characters    inserts "▁", any       none, Metaspace, Gemma's
    unigram         Unigram              chains of all steps    Metaspace, WhitespaceSplit before it
    wordpiece       WordPiece            BertNormalizer, any    BertPreTokenizer

A user may have any of them, so an engine that serves them all must be right for each. Settings that a fast engine can
serve are more frequent than the rest, since otherwise it would serve hardly any of the tokenizers.
"""

import functools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from tokenizers import AddedToken, Tokenizer, pre_tokenizers, processors

from pipelines.prepare.tokenize.engines import package_engines as patterns
from tests.support.charsmaps import nmt_nfkc

Step: TypeAlias = dict[str, Any]
Merge: TypeAlias = tuple[str, str]

_WORDS = (
    *("the", "The", "user", "film", "word", "over", "don't", "it's", "we'll", "hello", "house", "lead", "trail"),
    *("12", "123", "3.14", "1", "x", "s", "K", "é", "É", "e\u0301", "ﬁ", "ß", "İ", "Σ", "中文", "日本"),
    *("ไทย", "हि", "각"),
    *("...", "!", "--", "_", "a_b", "(", "'s", "a1", "##a", "``", "''", "👍🏽", "привет", "ſ", "½", "㎏"),
)
_SPACES = (" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n", "\x0b", "\x85", "\u00a0", "\u2003", "\u2028", "\u3000")
_SIGNS = (
    *("<mask>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<tag>", "<tag>more", "<ta", "[MASK]", "[CLS]"),
    *("<extra_id_0>", "<extra_id_1>", "|||A|||", "<0x41>", "<0x0A>", "<unk>", "▁", "▁▁", "▁the", "Ġthe", "Ġ"),
)
_TEMPTING = (" the", " The", "a1", "'s", "'st", " 12", "1234", "\n\n", " \n", "...", ".\n", "e\u0301", "K1", "  the")
_ENTRIES = ("▁", "▁▁", "<0x41>", "<0x0A>", "##a", "\u0301", " ", "\n", "é", "e\u0301", "K", "the▁", "▁the", "fi")
_ASCII = tuple(chr(point) for point in range(33, 127))
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_EXTREME = (0.0, -0.0, -1.0, -1e-300, -1e300, 1e300, -1e308, 1.0, -3.5)

_MARK: Step = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_MARKED: Step = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _MARK]}
_AT_SPACES: Step = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_SERVED_STEPS = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "Nmt", "Lowercase", "StripAccents", "Strip", "Replace")
_PATTERNS = ([patterns.LLAMA3], [patterns.QWEN2], [patterns.QWEN35], [patterns.O200K], [patterns.TEKKEN])
_FLAGS = ("normalized", "single_word", "lstrip", "rstrip")
# Flags of added tokens that no fast engine takes in this family, and that therefore come seldom.
_UNSERVED = {"byte level": (), "sentencepiece": ("rstrip", "single_word"), "unigram": (), "wordpiece": ("normalized",)}


def make(seed: int, number: int) -> tuple[str, Any]:
    """The family and the tokenizer of that number, as `transformers` opens it.

    Raises: whatever the libraries raise, if it is none that they take.
    """
    rng = random.Random(f"tokenizer {seed} {number}")
    family = list(FAMILIES)[number % len(FAMILIES)]
    model, normalizer, pre_tokenizer = FAMILIES[family](rng)
    state: Step = {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
    backend = Tokenizer.from_str(json.dumps({**state, "model": model}))
    _add_tokens(rng, backend, without=_UNSERVED[family] if rng.random() < 0.7 else ())
    return family, _opened(rng, backend)


def _flag(rng: random.Random, share: float = 0.5) -> bool:
    return rng.random() < share


# Models


def _byte_level(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    words = [_as_bytes(word) for word in _some_words(rng)]
    merges = _merges(rng, words, count=rng.choice((0, 20, 60)))
    others = [_as_bytes(rng.choice(_WORDS)) for _ in range(rng.choice((0, 0, 6)))]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *others, *map("".join, merges)]
    model = _bpe(rng, pieces, merges, unk_token=None, byte_fallback=False)
    normalizer = rng.choice((None, None, None, {"type": "NFC"}, {"type": "NFC"}, _normalizer(rng)))
    return model, normalizer, _byte_level_split(rng)


def _sentencepiece(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    words = [word.replace(" ", "▁") for word in _some_words(rng)]
    merges = _merges(rng, words, count=rng.choice((0, 20, 60)))
    if _flag(rng, 0.2):  # merges that make the name of a byte's entry, and go on from there
        name = rng.choice(("<0x0A>", "<0x41>", "<0xC3>"))
        merges += [*_merges(rng, [name], count=len(name)), rng.choice(((name, "a"), ("▁", name), (name, name)))]
    pieces = ["<unk>", *_BYTES, *_ASCII, "▁", *"".join(words), *map("".join, merges)]
    merges = [merge for merge in merges if {*merge, "".join(merge)} <= set(pieces)]
    unknown = "<unk>" if _flag(rng, 0.8) else rng.choice((None, None, None, "a"))
    model = _bpe(rng, pieces, merges, unk_token=unknown, byte_fallback=True)
    forms: list[tuple[Step | None, Step | None]] = [(_MARKED, None), (None, _metaspace(rng)), (_MARK, _AT_SPACES)]
    normalizer, split = rng.choice(forms)
    return model, _normalizer(rng) if _flag(rng, 0.1) else normalizer, split


def _bpe(rng: random.Random, pieces: list[str], merges: list[Merge], **options: object) -> Step:
    return {
        "type": "BPE",
        "dropout": rng.choice((None, 0.0)),
        "continuing_subword_prefix": rng.choice((None, "")),
        "end_of_word_suffix": rng.choice((None, "")),
        "fuse_unk": _flag(rng),
        "ignore_merges": _flag(rng, 0.15),
        "vocab": _numbered(rng, pieces),
        "merges": [list(merge) for merge in merges],
        **options,
    }


def _unigram(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    """A model with ties, extreme scores, pieces that occur twice, and the unknown token anywhere."""
    words = [word.replace(" ", "▁") for word in _some_words(rng)]
    pieces = [*_ASCII, "▁", *words, *_parts(rng, words), *rng.choices(_ENTRIES, k=6)]
    if fallback := _flag(rng, 0.4):
        pieces += _BYTES if _flag(rng, 0.8) else rng.sample(_BYTES, 100)
    if _flag(rng, 0.9):
        pieces = list(dict.fromkeys(pieces))
    rng.shuffle(pieces)
    pieces.insert(rng.choice((0, 0, 2, len(pieces))), "<unk>")
    score = rng.choice((_tied, _tied, _spread, lambda rng: rng.choice((_spread(rng), *rng.sample(_EXTREME, 1)))))
    model = {
        "type": "Unigram",
        "unk_id": pieces.index("<unk>") if _flag(rng, 0.95) else None,
        "vocab": [[piece, score(rng)] for piece in pieces],
        "byte_fallback": fallback,
    }
    split = _metaspace(rng)
    if _flag(rng, 0.3):
        split = _sequence([{"type": "WhitespaceSplit"}, split])
    return model, _normalizer(rng), split


def _tied(rng: random.Random) -> float:
    return float(-rng.randint(1, 4))


def _spread(rng: random.Random) -> float:
    return -20 * rng.random()


def _wordpiece(rng: random.Random) -> tuple[Step, Step | None, Step | None]:
    """A model with any prefix, any limit, and entries that no normalized text has."""
    prefix = rng.choice(("##", "##", "##", "", "@@", "▁", "a"))
    words = _some_words(rng)
    parts = _parts(rng, words)
    letters = rng.sample(_ASCII, rng.choice((40, len(_ASCII))))
    inner = [prefix + piece for piece in (*letters, *parts)]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]" if _flag(rng, 0.95) else "a",
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": rng.choice((0, 1, 4, 10, 100, 100, 100, 10**15)),
        "vocab": _numbered(rng, ["[UNK]", "a", *letters, *words, *parts, *inner, *rng.sample(_ENTRIES, 4)]),
    }
    normalizer = _bert_normalizer(rng) if _flag(rng, 0.95) else _normalizer(rng)
    return model, normalizer, {"type": "BertPreTokenizer"}


FAMILIES: dict[str, Callable[[random.Random], tuple[Step, Step | None, Step | None]]] = {
    "byte level": _byte_level,
    "sentencepiece": _sentencepiece,
    "unigram": _unigram,
    "wordpiece": _wordpiece,
}


def _some_words(rng: random.Random) -> list[str]:
    words = [rng.choice(("", " ")) + rng.choice(_WORDS) for _ in range(25)]
    return [*words, *rng.sample(_TEMPTING, 8), *rng.sample(_SPACES, 3)]


def _parts(rng: random.Random, words: Sequence[str]) -> list[str]:
    starts = [(word, rng.randrange(len(word))) for word in words for _ in range(3)]
    return [word[start : start + rng.randint(1, 4)] for word, start in starts]


@functools.cache
def _as_bytes(word: str) -> str:
    ((spelt, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)
    return str(spelt)


def _numbered(rng: random.Random, pieces: Iterable[str]) -> dict[str, int]:
    """An id for each piece: in order, in any order, or with holes."""
    different = list(dict.fromkeys(pieces))
    ids = list(range(len(different)))
    if _flag(rng, 0.2):
        ids = sorted(rng.sample(range(2 * len(different)), len(different)))
    if _flag(rng, 0.6):
        rng.shuffle(ids)
    return dict(zip(different, ids, strict=True))


def _merges(rng: random.Random, words: Iterable[str], *, count: int) -> list[Merge]:
    """Merges of neighbours in the words, as these are after the merges before; then some that make no sense: repeated,
    of entries that seldom meet, in any order.
    """
    lines, merges = [list(word) for word in words], []
    for _ in range(count):
        line = rng.choice(lines)
        if len(line) > 1:
            at = rng.randrange(len(line) - 1)
            merges.append((line[at], line[at + 1]))
            lines = [_merged(line, merges[-1]) for line in lines]
    parts = [part for merge in merges for part in (*merge, "".join(merge))]
    if merges and _flag(rng, 0.4):
        merges += [(rng.choice(parts), rng.choice(parts)) for _ in range(5)] + rng.choices(merges, k=3)
    if _flag(rng, 0.3):
        rng.shuffle(merges)
    return merges


def _merged(line: list[str], merge: Merge) -> list[str]:
    out: list[str] = []
    for piece in line:
        if out and (out[-1], piece) == merge:
            out[-1] += piece
        else:
            out.append(piece)
    return out


# Steps before and after the model


def _normalizer(rng: random.Random) -> Step | None:
    """None, one step or a chain, now and then a chain in a chain."""
    steps = [_normalizer_step(rng) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))]
    if len(steps) > 2 and _flag(rng, 0.3):
        steps = [{"type": "Sequence", "normalizers": steps[:2]}, *steps[2:]]
    if len(steps) > 1:
        return {"type": "Sequence", "normalizers": steps}
    return steps[0] if steps else None


def _normalizer_step(rng: random.Random) -> Step:
    kind = rng.choice(_SERVED_STEPS)
    if kind == "Strip":
        return {"type": kind, "strip_left": _flag(rng), "strip_right": _flag(rng)}
    if kind == "Replace":
        if _flag(rng, 0.3):
            return {"type": kind, "pattern": {"Regex": " {2,}"}, "content": rng.choice((" ", "▁"))}
        text = rng.choice((" ", "\x0b", "f", "é", "\u0301", "-", "``", "''", "  ", "▁", "\n", "the"))
        content = rng.choice(("", "", " ", "▁", '"', "a", "\u0301", "  "))
        return {"type": kind, "pattern": {"String": text}, "content": content}
    return {"type": kind, **({"precompiled_charsmap": nmt_nfkc()} if kind == "Precompiled" else {})}


def _bert_normalizer(rng: random.Random) -> Step:
    flags = {name: _flag(rng) for name in ("clean_text", "handle_chinese_chars", "lowercase")}
    return {"type": "BertNormalizer", "strip_accents": rng.choice((None, True, False)), **flags}


def _metaspace(rng: random.Random) -> Step:
    scheme, split = rng.choice(("always", "first", "never")), _flag(rng, 0.95)
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def _byte_level_split(rng: random.Random) -> Step:
    """What models of bytes are split by: GPT-2's pattern, after single digits or not, or another model's patterns."""
    kind = rng.random()
    level = {"type": "ByteLevel", "add_prefix_space": _flag(rng), "trim_offsets": _flag(rng), "use_regex": True}
    if kind < 0.4:
        return level
    if kind < 0.55:
        return _sequence([{"type": "Digits", "individual_digits": True}, level])
    expressions = list(patterns.DEEPSEEK) if kind < 0.62 else rng.choice(_PATTERNS)
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    last = {**level, "use_regex": False, "add_prefix_space": False}
    return _sequence([*({**split, "pattern": {"Regex": expression}} for expression in expressions), last])


def _sequence(steps: list[Step]) -> Step:
    return {"type": "Sequence", "pretokenizers": steps}


def _add_tokens(rng: random.Random, backend: Tokenizer, *, without: Sequence[str]) -> None:
    """Up to eight added tokens, each flag but `without` on none, some or all of them."""
    rates = {flag: 0.0 if flag in without else rng.choice((0.0, 0.0, 0.3, 1.0)) for flag in _FLAGS}
    vocabulary, contents = sorted(backend.get_vocab()), list[str]()
    for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 6, 8))):
        before = rng.choice([*contents, *_SIGNS])
        cut = rng.randrange(len(before))
        overlapping = (
            before[cut:],
            before[: cut + 1],
            before * 2,
            before + rng.choice(_WORDS),
            f" {before}",
            f"{before} ",
        )
        pools = (_SIGNS, _SIGNS, _SPACES, _SPACES, _WORDS, vocabulary, overlapping, overlapping)
        contents.append(rng.choice(rng.choice(pools)))
    for content in contents:
        flags = {flag: _flag(rng, rates[flag]) for flag in _FLAGS}
        # The reference never ends with a token that is normalized to nothing.
        if not (flags["normalized"] and backend.normalizer and not backend.normalizer.normalize_str(content)):
            special = _flag(rng, 0.3)
            add = backend.add_special_tokens if special else backend.add_tokens
            add([AddedToken(content, special=special, **flags)])


def _opened(rng: random.Random, backend: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    names = [rng.choice(("<s>", "</s>", "[CLS]", "[SEP]", "<unk>")) for _ in range(2)]
    pad = rng.choice((names[0], "<pad>", "[PAD]"))
    backend.add_special_tokens([*names, pad])
    # A build saves the tokenizer and loads it again, which changes ids where the vocabulary has holes.
    for _ in range(2):
        backend = Tokenizer.from_str(backend.to_str())
    first, last = ((name, backend.get_vocab()[name]) for name in names)
    if processor := _post_processor(rng, first=first, last=last):
        backend.post_processor = processor
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=10**9,
        pad_token=pad,
        split_special_tokens=_flag(rng, 0.1),
        padding_side=rng.choice(("right", "left")),
        truncation_side=rng.choice(("right", "right", "left")),
        model_input_names=["input_ids", *(["token_type_ids"] if _flag(rng, 0.6) else []), "attention_mask"],
    )


def _post_processor(rng: random.Random, *, first: tuple[str, int], last: tuple[str, int]) -> Any:
    """What puts special tokens around texts: templates of all forms, BERT's, RoBERTa's, or nothing."""
    cls, sep = first[0], last[0]
    single, pair = rng.choice(
        (
            (f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"),
            (f"{cls} $A", f"{cls} $A {cls} $B"),
            (f"$A {sep}", f"$A {sep} $B {sep}"),
            (f"$A:0 {sep}:0 {cls}:2", f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:2"),
            ("$A", "$A $B:1"),
        )
    )
    tokens = [first] + [last] * (first != last)
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    roberta = processors.RobertaProcessing(last, first, trim_offsets=_flag(rng), add_prefix_space=_flag(rng))
    others = (None, processors.BertProcessing(last, first), roberta, processors.ByteLevel(trim_offsets=_flag(rng)))
    return template if _flag(rng, 0.6) else rng.choice(others)
