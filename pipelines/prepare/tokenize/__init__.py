"""From texts to token ids: tokenizers, special tokens, windows, fast engines and chat templates."""
