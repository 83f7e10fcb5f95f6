"""Data files wherever they lie: names, sizes, identity, and bytes at any place."""
