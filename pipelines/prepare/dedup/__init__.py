"""Find duplicate rows, and rows that share runs of words with evaluation sets."""
