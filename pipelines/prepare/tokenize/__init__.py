"""Tokenization: tokenizers, special tokens, truncation, fast engines and chat templates."""

from pipelines.prepare.process import hub_libraries

hub_libraries.configure()
