"""The data files that DATASET names, local or remote: listing them, their versions, and reading their bytes."""
