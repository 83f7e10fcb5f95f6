"""Resolve DATASET by `datasets`: its splits, files, columns, and the stream that reads them."""
