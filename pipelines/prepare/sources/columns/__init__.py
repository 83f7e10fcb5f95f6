"""From columns of the source to texts, labels and kept columns."""
