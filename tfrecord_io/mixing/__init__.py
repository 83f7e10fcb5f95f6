"""The arithmetic of batches from several datasets, or of several row lengths (no TensorFlow)."""
