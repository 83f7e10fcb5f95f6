"""The process that we work in: its threads, imports and memory, and what is done so far."""
