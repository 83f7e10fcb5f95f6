"""Small real tokenizers, one for every difference among common tokenizers, trained in under a second each.

    kind              segments                          sides                represents
    wordpiece_uncased [CLS] A [SEP] B [SEP], types 0/1                       BERT; class BertTokenizer
    wordpiece_cased   the same                                               cased BERT
    truncation_left   the same                          truncates left       dialogue models
    byte_bpe          A B                                                    GPT-2, which has no pad token
    byte_bpe_bos      <|begin_of_text|> A, again for B  pads left            Llama 3
    byte_bpe_roberta  <s> A </s></s> B </s>                                  RoBERTa, all types 0
    bpe_fallback      <s> A <s> B                       pads left            Llama 2: bytes as fallback, no word split
    unigram           A </s> B </s>                                          T5
    unigram_left      A <sep> B <sep> <cls>, types 0/1/2  pads left          XLNet: special tokens at the end
    slow_ctrl         A B                                                    CTRL: Python code, files made here
    slow_byt5         A </s> B </s>                                          ByT5: Python code, no vocabulary

`KINDS[kind](folder)` writes a folder that `transformers.AutoTokenizer.from_pretrained(folder)` opens offline. It needs
only `tokenizers`, and the config is written by hand, so the files don't depend on transformers' version. `Zoo` trains
each kind once and loads it on every request.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support import texts

_VOCAB_SIZE = 1500
_MAX_PIECE = 12
_NUM_SENTENCES = 120
_PRIVATE = 0xF0000
_BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
_WITHOUT_TYPES = ["input_ids", "attention_mask"]


@functools.cache
def _corpus() -> tuple[str, ...]:
    return (*texts.sentences(_NUM_SENTENCES, seed=20), *texts.MULTI_SCRIPT)


def _save(folder: Path, tokenizer: Tokenizer, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _save_config(folder, **{"tokenizer_class": "PreTrainedTokenizerFast", **config})


def _save_config(folder: Path, **config: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _template(tokenizer: Tokenizer, *, single: str, pair: str) -> processors.TemplateProcessing:
    pieces = {piece.rpartition(":")[0] for piece in f"{single} {pair}".split()} - {"$A", "$B"}
    special_tokens = [_special(tokenizer, piece) for piece in sorted(pieces)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)


def _special(tokenizer: Tokenizer, token: str) -> tuple[str, int]:
    number = tokenizer.token_to_id(token)
    assert number is not None, f"{token} is not in the vocabulary"
    return token, number


def _frequent(words: list[str], *, inner_mark: str, num_letters: int, num_pieces: int) -> dict[str, int]:
    """The most frequent letters and longer pieces of `words` with their counts; pieces inside words carry the mark.

    The library's own WordPiece and Unigram trainers number and score pieces differently in every process, and the
    expected ids of a failing test should mean the same tomorrow. Counting is enough for a vocabulary of this size.
    """
    counts: Counter[str] = Counter()
    for word, count in Counter(words).items():
        for start in range(len(word)):
            mark = inner_mark if start else ""
            for end in range(start + 1, min(len(word), start + _MAX_PIECE) + 1):
                counts[mark + word[start:end]] += count
    letters = [piece for piece in counts if len(piece.removeprefix(inner_mark)) == 1]
    longer = counts.keys() - letters
    best = sorted(letters, key=lambda piece: (-counts[piece], piece))[:num_letters]
    best += sorted(longer, key=lambda piece: (-counts[piece] * len(piece), piece))[:num_pieces]
    return {piece: counts[piece] for piece in best}


def _corpus_words(tokenizer: Tokenizer) -> list[str]:
    normalized = map(tokenizer.normalizer.normalize_str, _corpus())
    return [word for text in normalized for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _wordpiece(folder: Path, *, lowercase: bool, **config: Any) -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    pieces = _frequent(_corpus_words(tokenizer), inner_mark="##", num_letters=400, num_pieces=1000)
    vocab = {piece: index for index, piece in enumerate([*_BERT_TOKENS, *pieces])}
    tokenizer.model = models.WordPiece(vocab=vocab, unk_token="[UNK]")
    tokenizer.add_special_tokens(_BERT_TOKENS)
    tokenizer.post_processor = _template(
        tokenizer, single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    _save(folder, tokenizer, **names, mask_token="[MASK]", model_input_names=_WITH_TYPES, **config)


def _byte_level(special_tokens: list[str], pre_tokenizer: Any, **model: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, special_tokens=special_tokens, **options)
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _byte_bpe(folder: Path) -> None:
    end = "<|endoftext|>"
    tokenizer = _byte_level([end], pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    _save(folder, tokenizer, bos_token=end, eos_token=end, unk_token=end, model_input_names=_WITHOUT_TYPES)


def _byte_bpe_bos(folder: Path) -> None:
    bos, eos, pad = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"
    words = Regex(r"'(?:[smdt]|ll|re|ve)| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(words, behavior="isolated"), to_bytes])
    tokenizer = _byte_level([bos, eos, pad], split, ignore_merges=True)
    template = _template(tokenizer, single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    names = {"bos_token": bos, "eos_token": eos, "pad_token": pad}
    _save(folder, tokenizer, **names, padding_side="left", model_input_names=_WITHOUT_TYPES)


def _byte_bpe_roberta(folder: Path) -> None:
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = _byte_level(special_tokens, pre_tokenizers.ByteLevel(add_prefix_space=False))
    sep, cls = _special(tokenizer, "</s>"), _special(tokenizer, "<s>")
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    _save(folder, tokenizer, **names, unk_token="<unk>", mask_token="<mask>", model_input_names=_WITHOUT_TYPES)


def _learn_merges(corpus: Iterable[str], pre_tokenizer: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces by id, and the merges. Reproducible as long as no option of the trainer limits or marks letters."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizer
    learner.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in learnt["merges"]]
    return sorted(learnt["vocab"], key=learnt["vocab"].__getitem__), merges


def _bpe_fallback(folder: Path) -> None:
    """Merges are learnt within words, as SentencePiece does, then applied to the whole text as one word."""
    learnt, merges = _learn_merges(_corpus()[:_NUM_SENTENCES], pre_tokenizers.Metaspace())
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learnt]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = _template(tokenizer, single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1")
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    _save(folder, tokenizer, **names, padding_side="left", model_input_names=_WITHOUT_TYPES)


def _unigram_model(special_tokens: list[str], normalizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    pieces = _frequent(_corpus_words(tokenizer), inner_mark="", num_letters=300, num_pieces=1100)
    total = sum(pieces.values())
    scores = [(piece, round(math.log(count / total), 4)) for piece, count in pieces.items()]
    vocab = [*((token, 0.0) for token in special_tokens), *scores]
    tokenizer.model = models.Unigram(vocab, unk_id=special_tokens.index("<unk>"), byte_fallback=False)
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def _unigram(folder: Path) -> None:
    tokenizer = _unigram_model(["<pad>", "</s>", "<unk>", "<extra_id_0>"], normalizers.NFKC())
    tokenizer.post_processor = _template(tokenizer, single="$A:0 </s>:0", pair="$A:0 </s>:0 $B:0 </s>:0")
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    _save(folder, tokenizer, **names, model_input_names=_WITHOUT_TYPES)


def _unigram_left(folder: Path) -> None:
    special_tokens = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eop>", "<eod>"]
    tokenizer = _unigram_model(special_tokens, normalizers.NFKD())
    tokenizer.post_processor = _template(
        tokenizer, single="$A:0 <sep>:0 <cls>:2", pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    )
    names = {f"{name}_token": f"<{name}>" for name in ("unk", "cls", "sep", "pad", "mask")}
    names.update(tokenizer_class="XLNetTokenizer", bos_token="<s>", eos_token="</s>", padding_side="left")
    _save(folder, tokenizer, **names, model_input_names=_WITH_TYPES)


def _slow_ctrl(folder: Path) -> None:
    """CTRL's merges write the end of a word as `</w>`, its vocabulary writes every other piece with `@@`.

    While learning, the last letter of a word is moved to a private plane, since the trainer's own option for a word
    end numbers letters differently in every process.
    """
    words = (text.split() for text in _corpus()[:_NUM_SENTENCES])
    marked = [" ".join(word[:-1] + chr(_PRIVATE + ord(word[-1])) for word in some) for some in words]
    learnt, merges = _learn_merges(marked, pre_tokenizers.WhitespaceSplit())
    spelt = {piece: _spell_end(piece) for piece in learnt}
    pieces = [end.removesuffix("</w>") if end.endswith("</w>") else f"{end}@@" for end in spelt.values()]
    vocab = {piece: index for index, piece in enumerate(["<unk>", "<pad>", *pieces])}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{spelt[left]} {spelt[right]}" for left, right in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    _save_config(folder, tokenizer_class="CTRLTokenizer", unk_token="<unk>", pad_token="<pad>")


def _spell_end(piece: str) -> str:
    return f"{piece[:-1]}{chr(ord(piece[-1]) - _PRIVATE)}</w>" if ord(piece[-1]) > _PRIVATE else piece


FAST_KINDS: dict[str, Callable[[Path], None]] = {
    "wordpiece_uncased": partial(_wordpiece, lowercase=True, tokenizer_class="BertTokenizer", do_lower_case=True),
    "wordpiece_cased": partial(_wordpiece, lowercase=False),
    "truncation_left": partial(_wordpiece, lowercase=True, truncation_side="left"),
    "byte_bpe": _byte_bpe,
    "byte_bpe_bos": _byte_bpe_bos,
    "byte_bpe_roberta": _byte_bpe_roberta,
    "bpe_fallback": _bpe_fallback,
    "unigram": _unigram,
    "unigram_left": _unigram_left,
}
SLOW_KINDS: dict[str, Callable[[Path], None]] = {
    "slow_ctrl": _slow_ctrl,
    "slow_byt5": partial(_save_config, tokenizer_class="ByT5Tokenizer", extra_ids=0),
}
KINDS: dict[str, Callable[[Path], None]] = {**FAST_KINDS, **SLOW_KINDS}


class Zoo:
    """The trained tokenizers of one test session, each made when first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, kind: str) -> Path:
        """The folder of that kind. It is shared by all tests: copy it before changing anything in it."""
        folder = self._root / kind
        if not folder.exists():
            KINDS[kind](folder)
        return folder

    def tokenizer(self, kind: str) -> Any:
        """A new tokenizer, as AutoTokenizer loads it: calling one leaves padding and truncation set in its backend."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(self.path(kind)))
