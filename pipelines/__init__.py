"""The programs on both sides of the format: `prepare` writes datasets, `train` (to come) consumes them."""
