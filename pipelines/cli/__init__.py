"""The commands: options become a config, results become tables, errors become two lines."""
