"""`train-tpu export`: a trained model as a folder that others can open.

command        options in, errors in two lines             bert    BERT with the heads of this trainer, by weight
exporting      the folder, made whole and then put there   causal  decoders, by KerasHub's own exporter
model_card     README.md of the folder
"""
