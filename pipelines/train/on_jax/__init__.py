"""JAX's engine: one step of all devices together (`global_step`); the devices, their batches, how the step is repeated,
and checkpoints by Orbax (`engine`).
"""
