"""Shard writing: from a task to its shard files and receipt."""
