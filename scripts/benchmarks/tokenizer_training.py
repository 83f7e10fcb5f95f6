"""The tokenizers of the benchmark, trained on the corpus and saved so that transformers loads them offline.

wordpiece   BERT's kind: lower-cased, 30,000 entries, [CLS] text [SEP]      the `pad` layout
bpe         GPT-2's kind: byte-level BPE, 32,000 entries, no special ends   the `concat` layout
unigram     T5's kind: 32,000 pieces, text </s>; learned from a quarter of the text, since that takes longest
"""

import pathlib
import shutil
from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from scripts.benchmarks import corpus

KINDS = ("wordpiece", "bpe", "unigram")
_CACHE_VERSION = 1
_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_END = "<|endoftext|>"


def trained(workdir: pathlib.Path, kind: str, *, sample_bytes: int, seed: int = 0) -> pathlib.Path:
    """The folder of that tokenizer; trained on the first `sample_bytes` of the corpus, once, then found again."""
    folder = workdir / f"tokenizer-v{_CACHE_VERSION}-{kind}-seed{seed}-{sample_bytes}"
    if folder.exists():
        return folder
    tokenizer, trainer = {"wordpiece": _wordpiece, "bpe": _bpe, "unigram": _unigram}[kind]()
    num_bytes = sample_bytes // 4 if kind == "unigram" else sample_bytes
    tokenizer.train_from_iterator(_batches(num_bytes, seed), trainer)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    _save(tokenizer, kind, partial)
    partial.rename(folder)
    return folder


def _batches(sample_bytes: int, seed: int) -> Iterator[list[str]]:
    for table in corpus.documents(num_bytes=sample_bytes, seed=seed):
        yield table["text"].to_pylist()


def _wordpiece() -> tuple[Tokenizer, trainers.Trainer]:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, _SPECIALS.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer, trainers.WordPieceTrainer(vocab_size=30_000, special_tokens=_SPECIALS, show_progress=False)


def _bpe() -> tuple[Tokenizer, trainers.Trainer]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=32_000,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return tokenizer, trainer


def _unigram() -> tuple[Tokenizer, trainers.Trainer]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=32_000, special_tokens=special, unk_token="<unk>", show_progress=False)
    return tokenizer, trainer


def _save(tokenizer: Tokenizer, kind: str, folder: pathlib.Path) -> None:
    from transformers import PreTrainedTokenizerFast

    if kind == "wordpiece":
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), _SPECIALS, strict=True))
    elif kind == "bpe":
        names = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
    else:
        names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    # Longer than any document: how long a row may be is the layout's matter, and no tokenizer here has positions.
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=1_000_000, **names)
    wrapped.save_pretrained(folder)
