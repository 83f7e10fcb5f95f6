"""Turning columns of the source into texts, labels and kept columns, and rejecting rows that cannot be used."""
