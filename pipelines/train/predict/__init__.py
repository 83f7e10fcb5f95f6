"""`train-tpu predict`: what a trained model says of a split, row by row, and of masked words in a text.

command       options in, errors in two lines              predictors   from a task's logits to columns
config        what is asked for                            decoding     beam search, for what is generated
loading       the model of a folder, and its tokenizer     record_rows  which source row a record is
predicting    a split, on all replicas, to a file          fill_mask    candidates for masked words
"""
