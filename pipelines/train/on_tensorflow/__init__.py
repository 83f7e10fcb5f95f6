"""TensorFlow's engine: one step as each replica of a strategy takes it (`replica_step`), checkpoints of `tf.train`
(`saves`), the strategy of a target (`strategies`), and how the step is repeated on it (`engine`).
"""
