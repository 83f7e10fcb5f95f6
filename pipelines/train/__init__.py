"""The trainer: a prepared dataset in, a trained model out, on a TPU, on GPUs, or on a CPU split into replicas.

    manifest ─► task ─► objective ─► batches ─┐
             └► model ─► learner ─────────────┴─► loop (custom or Keras) ─► checkpoints, metrics, final model

`config` says what is wanted, `devices` finds where it runs, `tasks` and `models` follow the manifest, `learner` is one
step of training, `loops` repeat it, `checkpoints` remember it, `run` puts these together, `cli` is the command line.
Nothing here imports Beam, datasets or the side that prepares data.
"""
