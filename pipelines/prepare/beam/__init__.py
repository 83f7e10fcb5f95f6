"""The Beam graph, its options, how its jobs fail, and what workers elsewhere need."""
