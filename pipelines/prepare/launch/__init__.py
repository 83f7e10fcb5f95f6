"""Launchers for builds, estimates and tokenizer training, and `doctor`, which checks an output before a build."""
