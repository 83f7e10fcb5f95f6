"""Launchers of builds, estimates and tokenizer training runs, and of `doctor`, a check of an output before a build."""
