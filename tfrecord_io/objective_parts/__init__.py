"""What objectives need to know of a dataset and its tokenizer, without TensorFlow: for the graph's and for NumPy's."""
