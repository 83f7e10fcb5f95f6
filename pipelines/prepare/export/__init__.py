"""Export of a finished dataset to the formats of other trainers, with a writer per format and a task per shard."""
