"""The trainer: a prepared dataset in, a trained model out, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► pure step ───────────┴─► backend (TensorFlow or JAX) ─► checkpoints, metrics, final model

`config` holds the options, `targets` chooses the accelerator, `tasks` and `models` follow the manifest, `steps` has the
step that both backends compute, `on_tensorflow` and `on_jax` run it on their devices, `checkpoints` stores the state,
`run` is the training loop, `cli` the command line. Nothing here imports Beam or `datasets`; of the code that prepares
data, only predictions ask it which source row a record comes from.
"""
