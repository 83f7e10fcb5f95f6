"""The columns of a dataset card, converted from its short form to the JSON that `datasets` writes of features.

- name: label                        "label": {"names": ["no", "yes"], "_type": "ClassLabel"}
  dtype:
    class_label:
      names: {'0': no, '1': yes}
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["as_json"]

# Names in cards of features whose class name is not the same word in camel case, and of those that have no dtype.
_LISTS = {"large_list": "LargeList", "list": "List", "sequence": "List"}
_OBJECTS = frozenset({"audio", "bio_sequence", "bio_structure", "image", "json", "mesh", "nifti", "pdf", "video"})


def as_json(columns: Any) -> dict[str, Any]:
    """Convert a card's list of columns. Raises: ValueError, TypeError or KeyError if it is malformed."""
    if not isinstance(columns, list) or not all(isinstance(column, dict) for column in columns):
        raise TypeError("features, expected a list of columns, each with a name and a dtype")
    return {str(column["name"]): _feature({**column}) for column in columns}


def _feature(entry: dict[str, Any]) -> Any:
    entry.pop("name", None)
    if not entry:
        return {}
    kind = next(iter(entry))
    if kind in _LISTS:
        return _list(entry, kind)
    if kind == "struct":
        return as_json(entry["struct"])
    if kind != "dtype":
        return {"_type": _camel(kind), **_options(entry, kind)}
    if not isinstance(entry["dtype"], str):
        return _inner(entry["dtype"])
    return {"_type": _camel(entry["dtype"])} if entry["dtype"] in _OBJECTS else {**entry, "_type": "Value"}


def _inner(entry: Any) -> Any:
    return as_json(entry) if isinstance(entry, list) else _feature({**entry})


def _list(entry: dict[str, Any], kind: str) -> Any:
    inner = entry.pop(kind)
    feature = _inner({"dtype": inner} if isinstance(inner, str) else inner)
    if kind == "sequence" and isinstance(inner, list):  # old releases stored a list of structs as a struct of lists
        return {name: {"feature": each, **entry, "_type": "List"} for name, each in feature.items()}
    return {"feature": feature, **entry, "_type": _LISTS[kind]}


def _options(entry: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the options of a feature, with the names of a class_label as a list."""
    options: dict[str, Any] = entry[kind] or {}
    if kind == "class_label" and isinstance(options.get("names"), dict):
        names = {int(number): name for number, name in options["names"].items()}
        if sorted(names) != list(range(len(names))):
            raise ValueError(f"class_label, expected a name for each of the ids 0 to {max(names)}")
        return {**options, "names": [names[number] for number in range(len(names))]}
    return options


def _camel(name: str) -> str:
    """Convert a name to camel case as `datasets` does: it drops a single underscore, and keeps two in a row."""
    words = (word for part in re.split(r"(?<!_)_(?!_)", name) for word in re.split(r"(_{2,})", part))
    return "".join(word.capitalize() for word in words)
