"""JAX's backend: `global_step` is one step of all devices, `backend` repeats it."""
