"""`train-tpu predict`: what a trained model says of a split, row by row, and of masked words in a text.

predicting   a split, on all replicas, to a file         predictors   from a task's logits to columns
loading      the model of a folder, and its tokenizer    decoding     beam search, for what is generated
fill_mask    candidates for masked words
"""
