"""Training a tokenizer: the texts, the trainers of `tokenizers`, and the styles of known models."""
