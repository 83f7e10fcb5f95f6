"""`train-tpu export`: write a trained model for other programs."""
