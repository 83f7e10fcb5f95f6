"""From texts to token ids: tokenizers, special tokens, windows, fast engines and chat templates."""

from pipelines.prepare.process import hub_libraries

hub_libraries.configure()
