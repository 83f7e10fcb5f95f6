"""Train a model on a prepared dataset, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► pure step ───────────┴─► backend (TensorFlow or JAX) ─► checkpoints, metrics, final model

`steps` defines the training step for both backends, and `run` the training loop. Nothing here imports Beam or
`datasets`; only `predict` imports `pipelines.prepare`.
"""
