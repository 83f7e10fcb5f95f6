"""Taking steps: what one is (`train_step`, `adamw`), the batches for it (`feeds`), how it is repeated (`loops`), and
what is measured of it (`evaluating`, `profiling`).
"""
