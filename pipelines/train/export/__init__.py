"""`train-tpu export`: write a trained model as a folder that other programs can open."""
