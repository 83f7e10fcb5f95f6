"""The rows that a job sees: selected by split, read, changed by user functions, and held out."""
