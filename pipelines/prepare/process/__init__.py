"""This process: its threads, imports and memory, and counters of its progress."""
