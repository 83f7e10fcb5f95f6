"""TensorFlow's backend: the step of one replica (`replica_step`), and the backend that repeats it (`backend`)."""
