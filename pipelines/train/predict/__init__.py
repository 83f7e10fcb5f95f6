"""`train-tpu predict`: predict the rows of a split, or the masked words of a text, with a trained model.

predicting   predict a split, on all replicas            predictors   convert a task's logits to columns
loading      load a folder's model and tokenizer         decoding     search beams of generated text
fill_mask    predict masked words
"""
