"""Rows that other rows or evaluation sets decide about: exact duplicates, and overlap with evaluation texts."""
