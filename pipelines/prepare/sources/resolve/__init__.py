"""What DATASET is, as `datasets` says: its splits, files, columns, and the stream that reads them."""
