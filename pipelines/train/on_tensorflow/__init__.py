"""TensorFlow's engine: one step as each replica of a strategy takes it (`replica_step`), how it is repeated (`loops`),
checkpoints of `tf.train` (`saves`), and the strategy of a target (`strategies`); `engine` puts them together.
"""
