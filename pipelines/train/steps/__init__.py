"""Taking steps: the mathematics of one (`pure_step`, `adamw`), and the batches for it (`feeds`). How it is repeated is
each engine's own.
"""
