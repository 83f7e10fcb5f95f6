"""Preflight: the trainer's own step, compiled by the real TPU compiler on a machine without a TPU.

    this process: TensorFlow                              a process of its own: JAX, libtpu
    manifest ─► job ─► batch ───────────────────────────► job ─► GlobalStep ─► compiled for a whole slice ─► JSON
    reader, for 2.5 s ─► examples/s ──► preflight: fits? how fast at best? ◄─────────────────────────────────┘

`tpu_slices` has the hardware's data, `compiler` runs `compile_step` and reads its result, `preflight` looks for the
largest batch and measures the reader, `report` prints the results. The step is that of JAX's engine; TensorFlow's step,
for TPU Nodes, does the same arithmetic.
"""
