"""Ingest: write rows of any format to Parquet parts with small row groups."""
