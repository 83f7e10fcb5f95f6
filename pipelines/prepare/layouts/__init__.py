"""Layouts: what becomes of rows of text, one module for each. `LAYOUTS` are all of them, by name.

pad       a row of text, or a pair, becomes one record
concat    documents are joined and cut at every L-th token
pack      whole documents side by side
"""

from __future__ import annotations

from pipelines.prepare.layouts.base import Builder, Encoded, Layout, Opening, Tools, permuted
from pipelines.prepare.layouts.concat import CONCAT
from pipelines.prepare.layouts.pack import PACK
from pipelines.prepare.layouts.pad import PAD

__all__ = ["LAYOUTS", "Builder", "Encoded", "Layout", "Opening", "Tools", "permuted"]

LAYOUTS: dict[str, Layout] = {"pad": PAD, "concat": CONCAT, "pack": PACK}
