"""Preflight: compile the trainer's own JAX step with the real TPU compiler on a machine without a TPU.

`tpu_slices` has hardware data. `compiler` runs `compile_step` in a separate process and reads its result. `preflight`
finds the largest batch and prints the results.
"""
