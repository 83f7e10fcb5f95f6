"""Preflight: the trainer's own JAX step, compiled by the real TPU compiler on a machine without a TPU.

`tpu_slices` has the hardware's data, `compiler` runs `compile_step` in a process of its own and reads its result,
`preflight` looks for the largest batch, and prints the results.
"""
