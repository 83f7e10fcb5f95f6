"""JAX's backend: `global_step` defines one step of all devices, `backend` repeats it."""
