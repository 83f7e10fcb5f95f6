"""The Beam graph, its options, the errors of its jobs, and the packages for workers elsewhere."""
