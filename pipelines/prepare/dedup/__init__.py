"""Deduplicate rows exactly, and find rows that share texts with evaluation sets."""
