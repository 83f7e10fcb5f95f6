"""The command line: options become a config, results become tables, and errors become two lines."""
