"""Programs that are run from a checkout: the trainer, the benchmark, the checks."""
