"""Arithmetic of batches that mix several datasets (no TensorFlow)."""
