"""The arithmetic of batches from several datasets (no TensorFlow)."""
