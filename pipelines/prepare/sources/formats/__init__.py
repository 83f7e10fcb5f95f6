"""Stored formats: column types, groups of rows, and a reader for each kind of file."""
