"""Rows as a job sees them: selected by split, read, changed by user functions, and held out."""
