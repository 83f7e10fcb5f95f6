"""`train-tpu export`: write a trained model as a folder that other programs open.

exporting   the folder with its model card, written atomically; decoders, by KerasHub's exporter
bert        BERT with this trainer's heads, converted weight by weight
"""
