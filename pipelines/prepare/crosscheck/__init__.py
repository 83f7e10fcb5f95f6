"""Compares the tokens of fast engines with those of the reference tokenizer while a job runs."""
