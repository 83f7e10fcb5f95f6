"""A finished dataset read again: verify, repair, trace, decode."""
