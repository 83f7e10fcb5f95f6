"""Types and JSON of the on-disk format, without TensorFlow."""
