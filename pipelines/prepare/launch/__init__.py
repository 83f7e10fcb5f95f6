"""Launchers of builds, estimates and tokenizer trainings."""
