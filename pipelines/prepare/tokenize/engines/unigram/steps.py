"""A normalizer as the Unigram engine takes it: what it does to each code point, and the few things it does to a text.

SentencePiece's normalizers are chains, of which most steps look at one code point at a time:

    T5, XLM-R    Precompiled
    Pegasus      Precompiled, " {2,}" -> " "
    ALBERT       "``" -> '"', "''" -> '"', NFKD, StripAccents, Lowercase, Precompiled

The others are taken out of the chain, and the loop does what they do (`kernels`):

    Replace of several characters, at the start of the chain    a document that holds them is left to the reference
    Strip                                                       the ends of a document
    Replace of " {2,}"                                          runs of spaces

One step may look at neighbours and stay in the chain, Precompiled or one of Unicode's four forms: `points` says
where it can do so without being noticed. NFKD or NFD with StripAccents behind it is not such a step, since the order of
marks is all that neighbours change, and they are gone then.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer

__all__ = ["MARK", "Steps", "chain", "charsmap_units", "steps_of"]

MARK = "▁"
Step: TypeAlias = Mapping[str, Any]

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_LOCAL = ("Lowercase", "Nmt", "StripAccents")
_SPACES = {"Regex": " {2,}"}
_BARE = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """A normalizer as the kernels apply it. Numbers are indices into `local`, its length if there is no such step."""

    local: tuple[Step, ...] = ()  # what is left of the chain
    literals: tuple[str, ...] = ()  # a document that holds one of these is left to the reference
    context: int = 0  # the step that looks at neighbours
    strip: int = 0  # before this step of `local`, ends are stripped
    strips_left: bool = False
    strips_right: bool = False
    merge: int = 0  # before this step of `local`, runs of spaces become one
    merges: bool = False
    merges_into_mark: bool = False

    @property
    def contextual(self) -> str:
        """Type of the step that looks at neighbours; empty if there is none."""
        return str(self.local[self.context]["type"]) if self.context < len(self.local) else ""


def steps_of(normalizer: Step | None) -> Steps | None:
    """Return the steps of a normalizer; None if the kernels cannot apply one of them, or their order."""
    found: Steps | None = Steps(context=-1)
    given = _flat(normalizer)
    for index, step in enumerate(given):
        if found is None or found.merges_into_mark:  # the mark is no space for the steps behind it
            return None
        found = _with(found, step, next_type=given[index + 1]["type"] if index + 1 < len(given) else "")
    if found is None:
        return None
    return found if found.context >= 0 else dataclasses.replace(found, context=len(found.local))


def _flat(step: Step | None) -> list[Step]:
    if step is None:
        return []
    return [one for part in step["normalizers"] for one in _flat(part)] if step["type"] == "Sequence" else [step]


def _with(found: Steps, step: Step, *, next_type: str) -> Steps | None:
    """Return `found` with one more step."""
    kind, here = step["type"], len(found.local)
    if kind == "Replace":
        return _with_replace(found, step)
    if kind == "Strip":
        if found.strips_left or found.strips_right:
            return None
        sides = {"strips_left": step["strip_left"], "strips_right": step["strip_right"]}
        return dataclasses.replace(found, strip=here, **sides)
    alone = kind in ("NFD", "NFKD") and next_type == "StripAccents"
    if kind in _LOCAL or alone:
        return dataclasses.replace(found, local=(*found.local, step))
    if (kind in _FORMS or kind == "Precompiled") and found.context < 0:
        return dataclasses.replace(found, local=(*found.local, step), context=here)
    return None


def _with_replace(found: Steps, step: Step) -> Steps | None:
    pattern, content, here = step["pattern"], step["content"], len(found.local)
    if pattern == _SPACES and content in (" ", MARK) and not found.merges:
        return dataclasses.replace(found, merge=here, merges=True, merges_into_mark=content == MARK)
    text = pattern.get("String", "")
    if len(text) == 1:
        return dataclasses.replace(found, local=(*found.local, step))
    at_start = not (found.local or found.merges or found.strips_left or found.strips_right)
    return dataclasses.replace(found, literals=(*found.literals, text)) if text and at_start else None


def chain(steps: tuple[Step, ...]) -> Any:
    """Return these steps as a normalizer of `tokenizers`; None without steps."""
    if not steps:
        return None
    state = {**_BARE, "normalizer": {"type": "Sequence", "normalizers": list(steps)}}
    return Tokenizer.from_str(json.dumps(state)).normalizer


def charsmap_units(step: Step) -> np.ndarray:
    """Return the trie of a Precompiled step, uint32. SentencePiece writes its size in bytes before it."""
    data = base64.b64decode(step["precompiled_charsmap"])
    return np.frombuffer(data, "<u4", int.from_bytes(data[:4], "little") // 4, offset=4)
