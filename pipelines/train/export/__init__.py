"""`train-tpu export`: a trained model as a folder that other programs open.

exporting   the folder with its model card, written atomically; decoders, by KerasHub's own exporter
bert        BERT with the heads of this trainer, converted weight by weight
"""
