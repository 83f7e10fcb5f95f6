"""Fingerprints: digests of everything that decides the bytes of a dataset, and the differences between two."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

# Increase it with every change that makes the same request give other bytes: another choice or order of rows, another
# cut into shards, another layout of tokens, another encoding. `tests/project/test_golden_bytes.py` fails until then.
# Shards of different algorithms are never mixed in one dataset.
ALGORITHM = 2

# The most differences that an error lists.
_LISTED = 20


def fingerprint_of(items: Mapping[str, Any]) -> str:
    """Return the digest of `items`, everything that decides the bytes of a dataset."""
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:32]


def differences(before: Any, now: Any) -> str:
    """Return a text that names each item that differs, at any depth, with its old and its new value."""
    found = list(_differences(before, now, name=""))
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return "; ".join(found[:_LISTED]) + more


def _differences(before: Any, now: Any, *, name: str) -> Iterator[str]:
    are_objects = all(
        isinstance(each, list) and all(isinstance(entry, Mapping) for entry in each) for each in (before, now)
    )
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key), now.get(key), name=inner)
    elif are_objects and all("name" in entry for entry in (*before, *now)):  # as the source's files are
        old, new = ({f"[{entry['name']}]": entry for entry in entries} for entries in (before, now))
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), name=name + key)
    elif are_objects and len(before) == len(now):  # as the user functions are
        for index, (old_entry, new_entry) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old_entry, new_entry, name=f"{name}[{index}]")
    elif before != now:
        texts = (json.dumps(value, sort_keys=True) for value in (before, now))
        was, here = (text if len(text) <= 200 else text[:200] + "…" for text in texts)
        yield f"{name}: was {was}, now {here}"
