"""Launchers of builds, estimates and tokenizer training runs, and `doctor`, which checks an output before them."""
