"""Engines, which turn batches of texts into ragged token ids without special tokens.

An engine must give exactly the ids of `tokenizer(text, add_special_tokens=False)`:

    wordpiece   our own kernels for BERT's WordPiece
    unigram     our own kernels for SentencePiece's Unigram
    fastokens   the package of that name, for byte-level BPE
    gigatoken   the package of that name, for SentencePiece's BPE
    hf          the Rust tokenizer behind a fast tokenizer, called without the Python layer on top of it
    slow        a tokenizer that is Python code, or whose Python layer changes the ids of the Rust one

The last two are references; one of them serves every tokenizer. `decide` chooses another engine only for tokenizers
that it is qualified for (docs/explanation/engines.md), and only if both agree on a battery of texts; it gives a reason
for each engine that it rejects. `crosscheck` keeps comparing while a job runs.
"""

from pipelines.prepare.tokenize.engines.base import (
    BATTERY,
    Engine,
    HuggingFaceEngine,
    NotQualified,
    SlowEngine,
    Tokenizing,
    copy_backend,
    is_reference,
    utf8_of,
)
from pipelines.prepare.tokenize.engines.choice import decide, ids_digest, open_reference, why_slow

__all__ = [
    "BATTERY",
    "Engine",
    "HuggingFaceEngine",
    "NotQualified",
    "SlowEngine",
    "Tokenizing",
    "copy_backend",
    "decide",
    "ids_digest",
    "is_reference",
    "open_reference",
    "utf8_of",
    "why_slow",
]
