"""Extract texts, labels and kept columns from the columns of a source, and reject unusable rows."""
