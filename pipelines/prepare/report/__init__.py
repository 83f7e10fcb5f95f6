"""The report: one HTML page that shows a finished dataset, or what a build would make of a source."""
