"""The columns of a dataset, from the short form of dataset cards to the JSON that `datasets` writes of its features.

- name: label                        "label": {"names": ["no", "yes"], "_type": "ClassLabel"}
  dtype:
    class_label:
      names: {'0': no, '1': yes}
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["as_json"]

# Of features that are no plain values, by their names in cards where those are not simply in another case.
_LISTS = {"large_list": "LargeList", "list": "List", "sequence": "List"}
_OBJECTS = frozenset({"audio", "bio_sequence", "bio_structure", "image", "json", "mesh", "nifti", "pdf", "video"})


def as_json(columns: Any) -> dict[str, Any]:
    """The features of a list of columns. Raises: ValueError, TypeError, KeyError if it is none."""
    if not isinstance(columns, list) or not all(isinstance(column, dict) for column in columns):
        raise TypeError("features, expected a list of columns, each with a name and a dtype")
    return {str(column["name"]): _feature({**column}) for column in columns}


def _feature(said: dict[str, Any]) -> Any:
    said.pop("name", None)
    if not said:
        return {}
    kind = next(iter(said))
    if kind in _LISTS:
        return _list(said, kind)
    if kind == "struct":
        return as_json(said["struct"])
    if kind != "dtype":
        return {"_type": _camel(kind), **_class_label(said, kind)[kind]}
    if not isinstance(said["dtype"], str):
        return _inner(said["dtype"])
    return {"_type": _camel(said["dtype"])} if said["dtype"] in _OBJECTS else {**said, "_type": "Value"}


def _inner(said: Any) -> Any:
    return as_json(said) if isinstance(said, list) else _feature({**said})


def _list(said: dict[str, Any], kind: str) -> Any:
    inner = said.pop(kind)
    feature = _inner({"dtype": inner} if isinstance(inner, str) else inner)
    if kind == "sequence" and isinstance(inner, list):  # a list of structs was a struct of lists once
        return {name: {"feature": each, **said, "_type": "List"} for name, each in feature.items()}
    return {"feature": feature, **said, "_type": _LISTS[kind]}


def _class_label(said: dict[str, Any], kind: str) -> dict[str, Any]:
    held = said[kind] or {}
    if kind == "class_label" and isinstance(held.get("names"), dict):
        names = {int(number): name for number, name in held["names"].items()}
        if sorted(names) != list(range(len(names))):
            raise ValueError(f"class_label, expected a name for each of the ids 0 to {max(names)}")
        held = {**held, "names": [names[number] for number in range(len(names))]}
    return {kind: held}


def _camel(name: str) -> str:
    """As `datasets` names a class: one underscore goes, and two in a row stay."""
    words = (word for part in re.split(r"(?<!_)_(?!_)", name) for word in re.split(r"(_{2,})", part))
    return "".join(word.capitalize() for word in words)
