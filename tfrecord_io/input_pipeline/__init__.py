"""The tf.data graph: order, host sharding, and resuming at a step."""
