"""The trainer: a prepared dataset in, a trained model out, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► pure step ───────────┴─► backend (TensorFlow or JAX) ─► checkpoints, metrics, final model

`tasks` and `models` follow the manifest, `steps` has the step that both backends compute, `run` is the training loop.
Nothing here imports Beam or `datasets`; only predictions import code that prepares data.
"""
