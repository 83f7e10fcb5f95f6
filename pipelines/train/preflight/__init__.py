"""Preflight: compile the trainer's JAX step with the TPU compiler, on a machine without a TPU."""
