"""Ingest: read rows of any format with `datasets`, and write them to Parquet parts with small row groups."""
