"""Training a tokenizer: counting words, learning a vocabulary from the counts, and the styles of known models."""
