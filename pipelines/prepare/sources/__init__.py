"""Turn DATASET into rows: resolve splits and files, read Parquet in place, ingest every other format."""

from pipelines.prepare.process import hub_libraries

hub_libraries.configure()
