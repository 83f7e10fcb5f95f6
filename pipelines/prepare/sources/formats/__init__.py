"""One stored format each: column types, groups of rows, and readers."""
