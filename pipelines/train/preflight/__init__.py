"""The trainer's own step, compiled by the real TPU compiler on a machine without a TPU.

    this process: TensorFlow                                             a process of its own: JAX, libtpu
    manifest ─► job ─► learner ─► one replica's step ─► StableHLO text ─► compile for v2 … v6e ─► JSON
                                  └ rules: shapes that depend on data,                            │
                                    Python that decides on tensors                                │
    reader, for 2.5 s ─► examples/s ─────────────► flight: fits? how fast at best? ◄──────────────┘

`slices` knows the hardware, `steps` makes the step's program, `rules` says where a model breaks what XLA asks for,
`compiler` runs `compile_for_tpu` and reads its answer, `largest` looks for the largest batch, `feed` measures the
reader, `result` puts these together, `report` and `command` say what was found.
"""
