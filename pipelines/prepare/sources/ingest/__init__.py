"""Copying what cannot be read in place into Arrow files with small record batches."""
