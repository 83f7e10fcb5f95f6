"""Trains the small WordPiece tokenizer of this example: `python examples/reviews/train_tokenizer.py [OUTDIR]`.

    train.jsonl ──► trainer (WordPiece merges) ──► vocabulary ──► a fresh BERT-style tokenizer ──► OUTDIR

The folder loads with `transformers.AutoTokenizer.from_pretrained(OUTDIR)`, without a network. Equal reviews give
equal bytes on every run, since the fingerprint of a dataset covers its tokenizer.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence

# It would say that it found no PyTorch, which nothing here needs.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TRAIN_FILE = pathlib.Path(__file__).parent / "train.jsonl"
FOLDER = "out/tokenizers/reviews"
SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
VOCAB_SIZE = 2000
MAX_LENGTH = 128


def train(texts: Sequence[str], *, vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """A lowercasing WordPiece tokenizer that gives input_ids, token_type_ids and attention_mask, and [CLS] … [SEP]."""
    return _as_pretrained(_bert_like(_vocabulary(texts, vocab_size=vocab_size)))


def read_texts(path: pathlib.Path) -> list[str]:
    """The "text" of every line of a JSON lines file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def _vocabulary(texts: Sequence[str], *, vocab_size: int) -> dict[str, int]:
    tokenizer = _bert_like({SPECIAL_TOKENS["unk"]: 0})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # The trainer numbers letters in the order of a randomly seeded hash map and breaks ties by that number, so
        # each run would give another vocabulary. Letters named here get their numbers in this order instead.
        special_tokens=[*SPECIAL_TOKENS.values(), *_alphabet(tokenizer, texts)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.get_vocab(with_added_tokens=True)


def _alphabet(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Every letter that starts a word, and `##` before every letter that continues one, in a fixed order."""
    letters: set[str] = set()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text)):
            letters.add(word[0])
            letters.update("##" + letter for letter in word[1:])
    return sorted(letters)


def _bert_like(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _as_pretrained(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    cls, sep = SPECIAL_TOKENS["cls"], SPECIAL_TOKENS["sep"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in SPECIAL_TOKENS.items()},
    )


def main(arguments: Sequence[str]) -> int:
    """The command line: at most one argument, the folder to write."""
    if len(arguments) > 1 or any(each.startswith("-") for each in arguments):
        print("usage: python examples/reviews/train_tokenizer.py [OUTDIR]", file=sys.stderr)
        return 2
    texts = read_texts(TRAIN_FILE)
    tokenizer = train(texts)
    folder = arguments[0] if arguments else FOLDER
    tokenizer.save_pretrained(folder)
    print(f"{folder}: WordPiece tokenizer, {len(tokenizer)} entries, trained on {len(texts)} reviews")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
