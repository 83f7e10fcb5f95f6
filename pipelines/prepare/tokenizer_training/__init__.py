"""Training of tokenizers: the texts, the trainers of `tokenizers`, and the styles of known models."""
