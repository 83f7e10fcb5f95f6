"""From DATASET to rows: splits and files, Parquet read where it lies, ingest of everything else."""
