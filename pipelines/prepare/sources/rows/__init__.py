"""Rows of a job: selected by split, read, changed by user functions, and held out."""
