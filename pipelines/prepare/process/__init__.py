"""Worker processes, and the threads, imports, memory and progress counters of this process."""
