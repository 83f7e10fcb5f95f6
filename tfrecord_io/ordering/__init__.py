"""Arithmetic of a training order that is the same on any number of hosts (no TensorFlow)."""
