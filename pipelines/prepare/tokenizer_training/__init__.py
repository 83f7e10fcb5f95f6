"""Train tokenizers: the texts, the trainers of `tokenizers`, and the styles of known models."""
