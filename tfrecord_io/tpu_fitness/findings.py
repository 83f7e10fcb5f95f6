"""What a look at an input pipeline found."""

from __future__ import annotations

import dataclasses

__all__ = ["Finding"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """`place` is an operation, a path or a component of the element; unless it is `fatal`, the input works, but costs
    more than it has to.
    """

    kind: str
    place: str
    problem: str
    remedy: str
    fatal: bool
