"""JAX's backend."""
