"""TensorFlow's backend."""
