"""Worker processes, and of this one the threads, imports, memory, and counters of its progress."""
