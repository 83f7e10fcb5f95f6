"""Plan which rows go into which shard: sample rows, model their output size, cut blocks, make tasks."""
