"""The output folder: its names, plans, receipts, and the commit."""
