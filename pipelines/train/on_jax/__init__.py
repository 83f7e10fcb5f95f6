"""JAX's engine: one step of all devices together (`global_step`), checkpoints by Orbax (`saves`), and the devices,
their batches and how the step is repeated (`engine`).
"""
