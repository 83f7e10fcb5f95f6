"""`train-tpu predict`: predictions of a trained model for the rows of a split, or for masked words in a text.

predicting   a split, on all replicas, to a file         predictors   from a task's logits to columns
loading      a folder's model and tokenizer              decoding     beam search, for generated text
fill_mask    candidates for masked words
"""
