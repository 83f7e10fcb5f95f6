"""The output folder of a build: file names, plans, receipts, and the commit."""
