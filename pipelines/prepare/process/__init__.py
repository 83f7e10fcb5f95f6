"""Worker processes, and this process's threads, imports, memory and counters."""
