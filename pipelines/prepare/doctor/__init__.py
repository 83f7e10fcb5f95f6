"""Checks that a build can write to an output and read its source."""
