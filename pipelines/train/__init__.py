"""The trainer: a prepared dataset in, a trained model out, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► replica_step ────────┴─► loop (custom or Keras) ─► checkpoints, metrics, final model

`config` says what is wanted, `devices` finds where it runs, `tasks` and `models` follow the manifest, `train_step` is
one step of training, `loops` repeat it, `checkpoints` save it, `run` puts these together, `cli` is the command line.
Nothing here imports Beam, datasets or the side that prepares data.
"""
