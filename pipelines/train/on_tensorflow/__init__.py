"""TensorFlow's engine: the step of one replica (`replica_step`), and the engine that repeats it (`engine`)."""
