"""`train-tpu export`: a trained model as a folder that others can open.

exporting   the folder with its model card, made whole and then put there; decoders, by KerasHub's own exporter
bert        BERT with the heads of this trainer, by weight
"""
