"""Checks that a build can write to an output, and facts about this machine."""
