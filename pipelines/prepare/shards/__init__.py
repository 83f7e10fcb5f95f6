"""One task to its shard and receipt."""
