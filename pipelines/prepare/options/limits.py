"""Upper limits of numeric options. A larger value is a typing mistake; no machine has the memory for it."""

from __future__ import annotations

from pipelines.prepare.options.layout_traits import LAYOUT_TRAITS
from tfrecord_io.errors import ConfigError

__all__ = ["MOST_SHARD_BYTES", "MOST_TOKENS", "MOST_WORKERS", "require_at_most", "require_room_for_record"]

MOST_TOKENS = 1 << 22
MOST_SHARD_BYTES = 10**11
MOST_WORKERS = 1024


def require_at_most(option: str, value: int, most: int, *, remedy: str) -> None:
    """Raise ConfigError if `value` is over `most`."""
    if value > most:
        shown = str(value) if value < 10**18 else "of 10^18 or more"
        raise ConfigError(f"{option} {shown}, expected at most {most}", remedy=remedy)


def require_room_for_record(layout: str, *, length: int, shard_bytes: int) -> None:
    """Raise ConfigError if one record of `length` tokens needs more than `shard_bytes`."""
    least = LAYOUT_TRAITS[layout].values_per_token * length
    if least > shard_bytes:
        raise ConfigError(
            f"--max-length {length} with --shard-size {shard_bytes} bytes, but one record of that length takes at "
            f"least {least}",
            remedy="give a smaller --max-length or a larger --shard-size; the default is 100MB",
        )
