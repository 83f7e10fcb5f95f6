"""Preflight: compile the trainer's JAX step with the TPU compiler, on a machine without a TPU.

`tpu_slices` has hardware data, `compiler` runs `compile_step` in a separate process, and `preflight` finds the largest
batch and prints the results.
"""
