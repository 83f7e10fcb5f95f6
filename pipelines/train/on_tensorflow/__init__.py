"""TensorFlow's engine: one step as each replica of a strategy takes it (`replica_step`); the strategy of a target, how
the step is repeated on it, and checkpoints of `tf.train` (`engine`).
"""
