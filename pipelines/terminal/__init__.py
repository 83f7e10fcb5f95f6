"""Shared by the command lines of data preparation and training: output for people, and quiet libraries."""
