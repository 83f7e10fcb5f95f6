"""Compute how to mix datasets, without TensorFlow."""
