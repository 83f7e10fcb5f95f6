"""Export of a finished dataset to the formats of other trainers: a writer for each format, a task for each shard."""
