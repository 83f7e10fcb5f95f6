"""JAX's backend: one step of all devices together (`global_step`), and the backend that repeats it (`backend`)."""
