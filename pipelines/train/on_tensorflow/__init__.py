"""TensorFlow's backend: `replica_step` defines the step of one replica, `backend` repeats it."""
