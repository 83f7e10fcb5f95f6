"""The on-disk contract as types and JSON, without TensorFlow."""
