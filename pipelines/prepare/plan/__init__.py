"""Planning which rows go into which shard: sample, size model, blocks, tasks."""
