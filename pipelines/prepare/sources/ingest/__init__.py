"""Ingest rows that `datasets` reads: write them to Parquet parts with small row groups."""
