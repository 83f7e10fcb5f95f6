"""What `readiness` looks at: elements and graphs of a tf.data pipeline."""
