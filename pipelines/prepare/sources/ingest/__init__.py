"""Write what `datasets` reads to Parquet parts with small row groups."""
