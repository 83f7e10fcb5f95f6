"""Order training rows independently of the number of hosts, without TensorFlow."""
