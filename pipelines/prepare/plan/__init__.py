"""Plan which rows go into which shard: sample rows, predict their output size, cut blocks, make tasks."""
