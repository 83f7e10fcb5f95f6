"""The programs in scripts/ and examples/."""
