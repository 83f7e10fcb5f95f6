"""The rows that a job sees: the splits asked for, read, held out, and taken through user functions."""
