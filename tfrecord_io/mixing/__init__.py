"""Arithmetic of mixtures of datasets, without TensorFlow."""
