"""Export of a finished dataset to the formats of other trainers: a writer per format, a task per shard."""
