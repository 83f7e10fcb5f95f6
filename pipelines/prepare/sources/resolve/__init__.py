"""Resolve DATASET with `datasets` to splits, files, columns and streams of rows."""
