"""Cores, memory, imports, threads and progress counters of a process."""
