"""Build the tf.data graph: the order of rows, the rows of each host, and resuming at a step."""
