"""Encode and decode Examples and TFRecord frames, without TensorFlow or files."""
