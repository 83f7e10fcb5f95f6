"""Fingerprints: digests of everything that determines a dataset's bytes."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

# Increase this number whenever the same request produces different bytes (see `tests/project/test_golden_bytes.py`).
ALGORITHM = 1

_LISTED = 20


def fingerprint_of(items: Mapping[str, Any]) -> str:
    """Return the fingerprint of `items`, the values by name that determine a dataset's bytes: 32 hex digits."""
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:32]


def differences(before: Any, now: Any) -> str:
    """Describe up to 20 differences between two JSON values, at any depth, each with its old and new value."""
    listed = list(_differences(before, now, name=""))
    more = f"; and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return "; ".join(listed[:_LISTED]) + more


def _differences(before: Any, now: Any, *, name: str) -> Iterator[str]:
    are_objects = all(
        isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value) for value in (before, now)
    )
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key), now.get(key), name=inner)
    elif are_objects and all("name" in entry for entry in (*before, *now)):  # for example, the source's files
        old, new = ({f"[{entry['name']}]": entry for entry in entries} for entries in (before, now))
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), name=name + key)
    elif are_objects and len(before) == len(now):  # for example, user functions
        for index, (old_entry, new_entry) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old_entry, new_entry, name=f"{name}[{index}]")
    elif before != now:
        texts = (json.dumps(value, sort_keys=True) for value in (before, now))
        was, here = (text if len(text) <= 200 else text[:200] + "…" for text in texts)
        yield f"{name}: was {was}, now {here}"
