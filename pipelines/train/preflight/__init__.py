"""The trainer's own step, compiled by the real TPU compiler on a machine without a TPU.

    this process: TensorFlow                              a process of its own: JAX, libtpu
    manifest ─► job ─► batch ───────────────────────────► job ─► GlobalStep ─► compiled for a whole slice ─► JSON
    reader, for 2.5 s ─► examples/s ──► preflight: fits? how fast at best? ◄─────────────────────────────────┘

`tpu_slices` knows the hardware, `compiler` runs `compile_step` and reads its answer, `preflight` looks for the largest
batch, measures the reader and puts these together, `report` says what was found. The step is that of JAX's engine;
TensorFlow's, for TPU Nodes, does the same arithmetic.
"""
