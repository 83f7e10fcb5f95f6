"""Examples and TFRecord frames, bytes in and out. No TensorFlow, no files: arrays and bytes only."""
