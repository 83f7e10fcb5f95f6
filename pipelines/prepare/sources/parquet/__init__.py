"""Read rows of Parquet files, both source files and ingested parts: footers, row groups, casts."""
