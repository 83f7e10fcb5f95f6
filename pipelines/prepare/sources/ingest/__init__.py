"""Ingest: copying rows that cannot be read in place to Arrow files with small record batches."""
