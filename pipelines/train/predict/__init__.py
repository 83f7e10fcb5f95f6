"""`train-tpu predict`: predict the rows of a split, or the masked words of a text, with a trained model."""
