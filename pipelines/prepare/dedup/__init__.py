"""Exact deduplication of rows, and decontamination from texts of evaluation sets."""
