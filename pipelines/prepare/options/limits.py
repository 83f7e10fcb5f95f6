"""The largest numbers that a request may have: above them is a slip of the finger, and no machine's memory."""

from __future__ import annotations

from tfrecord_io.errors import ConfigError

__all__ = ["MOST_SHARD_BYTES", "MOST_TOKENS", "MOST_WORKERS", "require_at_most", "require_room_for_record"]

MOST_TOKENS = 1 << 22
MOST_SHARD_BYTES = 10**11
MOST_WORKERS = 1024

# How many values a record has for each of its L positions, at the least; each takes one byte or more.
_VALUES = {"concat": 1, "pad": 2, "seq2seq": 2, "chat": 3, "pack": 3, "qa": 4, "tokens": 4}


def require_at_most(option: str, value: int, most: int, *, remedy: str) -> None:
    """Raises: ConfigError if `value` is over `most`."""
    if value > most:
        shown = str(value) if value < 10**18 else "of 10^18 or more"
        raise ConfigError(f"{option} {shown}, expected at most {most}", remedy=remedy)


def require_room_for_record(layout: str, *, length: int, shard_bytes: int) -> None:
    """Raises: ConfigError if one record of `length` tokens is larger than a shard is to be."""
    least = _VALUES[layout] * length
    if least > shard_bytes:
        raise ConfigError(
            f"--max-length {length} with --shard-size {shard_bytes} bytes, but one record of that length takes at "
            f"least {least}",
            remedy="give a smaller --max-length or a larger --shard-size; the default is 100MB",
        )
