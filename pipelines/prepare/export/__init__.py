"""Export of a finished dataset to the formats of other trainers. Each format has a writer. A task exports a shard."""
