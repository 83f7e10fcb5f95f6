"""TensorFlow's backend: `replica_step` is the step of one replica, `backend` repeats it."""
