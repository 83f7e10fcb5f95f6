"""The trainer: a prepared dataset in, a trained model out, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► pure step ───────────┴─► engine (TensorFlow or JAX) ─► checkpoints, metrics, final model

`config` says what is wanted, `targets` where it runs, `tasks` and `models` follow the manifest, `steps` has what both
engines compute, `on_tensorflow` and `on_jax` repeat it on their devices, `checkpoints` says what is kept, `run` puts
these together, `cli` is the command line. Nothing here imports Beam, datasets or the side that prepares data.
"""
