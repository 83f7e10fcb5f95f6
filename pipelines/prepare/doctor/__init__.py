"""Checks of whether a build can write to an output and read its source."""
