"""Remedies and listings that several messages share."""

import codecs
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from tfrecord_io.shown import some


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return `did you mean 'text'? ` with the name in `known` that is most similar to `name`, or '' if none is.

    A known name with `name` as one of its words, such as text_column for text, also counts as similar.
    """
    lower = {known_name.lower(): known_name for known_name in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    longer = [word for word in lower if name.lower() in word.split("_")]
    # Names of columns come first, since users often shorten them to one word.
    near = near or sorted(longer, key=lambda word: not word.endswith("_column"))
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def listing(names: Sequence[str], *, most: int = 5) -> str:
    """Join the first `most` names with commas, and add how many more there are, such as `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def to_utf8(content: bytes) -> str:
    """Return the advice for a file that is not UTF-8. `content`: its first bytes; a byte order mark means UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it to UTF-8: `iconv -f utf-16 -t utf-8 OLD > NEW`"
    return "convert it to UTF-8; for Latin-1, common in older data: `iconv -f latin1 -t utf-8 OLD > NEW`"


def may_join(options: Mapping[str, Any]) -> bool:
    """Return whether a record may hold several rows. `options`: result of `PrepareConfig.fingerprint_options`."""
    return not (options["label_column"] or options["keep_columns"]) and len(options["text_columns"]) == 1


def against_padding(options: Mapping[str, Any]) -> str:
    """Return advice on which options of `build` reduce padding and may be combined with `options` (see `may_join`)."""
    if options.get("bucket_lengths"):
        return "shorter --bucket-lengths"
    remedies = []
    is_plain = options.get("stride") is None and options["layout"] == "pad"
    if options["layout"] == "chat" and may_join(options) and not options.get("pack_rows"):
        remedies.append("--pack-rows")
    if is_plain and may_join(options) and options["truncation"] == "longest_first":
        remedies.append("--layout pack")
    if is_plain:
        remedies.append("--bucket-lengths auto:4")
    return ", ".join([*remedies, "or a smaller --max-length" if remedies else "a smaller --max-length"])


def about_fim(counts: Mapping[str, int], *, rows: int, length: int) -> str:
    """Describe the fill-in-the-middle counts (`Ledger.fim`) of `rows` documents. `length`: tokens in a record."""
    spm = counts.get("spm", 0)
    text = f"fill-in-the-middle: {counts.get('psm', 0) + spm:,} of {some(rows, 'document')}, "
    text += f"{spm:,} with the suffix first"
    if longer := counts.get("longer_than_row"):
        text += f"; {some(longer, 'document')} longer than a row of {length:,} tokens, with the middle in another row: "
        text += "--layout pack keeps documents whole"
    if unchanged := counts.get("unchanged"):
        text += f"; {some(unchanged, 'more document')} unchanged, since rewriting would exceed {length:,} tokens"
    return text
