"""The programs on both sides of the format: `prepare` writes datasets, `train` trains models on them."""
