"""Extraction of texts, labels and kept columns from source columns, and rejection of unusable rows."""
