"""The report: one HTML page about a finished dataset."""
