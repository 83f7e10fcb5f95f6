"""Training orders that do not depend on the number of hosts, without TensorFlow."""
