"""Codec of Examples and TFRecord frames, on arrays and bytes alone: no TensorFlow, no files."""
