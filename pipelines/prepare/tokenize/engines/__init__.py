"""Engines: a batch of texts in, ragged token ids without special tokens out.

An engine must give the very ids of `tokenizer(text, add_special_tokens=False)`:

    wordpiece   kernels of our own for BERT's WordPiece
    unigram     kernels of our own for SentencePiece's Unigram
    fastokens   the package of that name, for byte-level BPE
    gigatoken   the package of that name, for SentencePiece's BPE
    hf          the Rust tokenizer behind a fast tokenizer, called without the Python layer on top of it
    slow        a tokenizer that exists in Python only, or whose Python layer changes what the Rust one gives

The last two are references: one of them serves every tokenizer. `decide` takes another one only for the tokenizers that
it is qualified for (docs/engines.md), and only if both agree on a battery of texts, and says why not the others;
`crosscheck` goes on comparing.
"""

from pipelines.prepare.tokenize.engines.base import BATTERY, Engine, is_reference, utf8_of
from pipelines.prepare.tokenize.engines.choice import Choice, Reference, choose, decide, open_reference, why_slow
from pipelines.prepare.tokenize.engines.hugging_face import HuggingFaceEngine, SlowEngine, copy_backend

__all__ = [
    "BATTERY",
    "Choice",
    "Engine",
    "HuggingFaceEngine",
    "Reference",
    "SlowEngine",
    "choose",
    "copy_backend",
    "decide",
    "is_reference",
    "open_reference",
    "utf8_of",
    "why_slow",
]
