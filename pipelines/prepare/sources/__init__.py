"""From DATASET to rows: splits and files, Parquet read where it lies, ingest of everything else."""

from pipelines.prepare.process import hub_libraries

hub_libraries.configure()
