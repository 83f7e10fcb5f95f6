"""The command line: convert options to a config, results to tables, and errors to messages of two lines."""
