"""Programs to run in a checkout of this repository: the trainer, the benchmark, the checks."""
