"""JAX's engine: one step of all devices together (`global_step`), and the engine that repeats it (`engine`)."""
