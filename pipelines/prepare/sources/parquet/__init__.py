"""Read the rows of Parquet files: source files, and parts that ingest wrote."""
