"""Taking steps: the mathematics of one (`pure_step`, `adamw`), the batches for it (`feeds`), and what is measured of it
(`evaluating`, `profiling`). How it is repeated is each engine's own.
"""
