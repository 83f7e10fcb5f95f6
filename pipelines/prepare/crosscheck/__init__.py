"""Comparing what engines give with the reference tokenizer while a job runs."""
