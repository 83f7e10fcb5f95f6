"""Resolution of DATASET to rows: splits and files, Parquet read in place, ingest of every other format."""

from pipelines.prepare.process import hub_libraries

hub_libraries.configure()
