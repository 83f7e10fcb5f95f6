"""Reading rows from Parquet files, the source's own and ingested ones: footers, row groups, casts."""
