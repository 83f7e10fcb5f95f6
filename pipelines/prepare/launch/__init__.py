"""Launchers of builds, estimates and tokenizer trainings, and `doctor`, which checks an output before them."""
