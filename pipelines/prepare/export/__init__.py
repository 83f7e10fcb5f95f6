"""A finished dataset in the formats of other trainers: a writer for each format, and a task for each shard."""
