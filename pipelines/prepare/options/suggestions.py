"""Remedies and listings that several messages share."""

import codecs
import difflib
from collections.abc import Mapping, Sequence
from typing import Any


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return `did you mean 'text'? ` with the most similar known name, or an empty string.

    A single known name that contains `name` as a word, such as text_column for text, is similar, too.
    """
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    near = near or sorted((each for each in lower if name.lower() in each.split("_")), key=_is_no_column)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def _is_no_column(name: str) -> bool:
    """Sort names of columns first: users often shorten them to one word."""
    return not name.endswith("_column")


def listing(names: Sequence[str], *, most: int = 5) -> str:
    """Return the first names, and the number of further ones."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def to_utf8(content: bytes) -> str:
    """Return the remedy to convert a file to UTF-8; from UTF-16 if `content` begins with its byte order mark."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it to UTF-8: `iconv -f utf-16 -t utf-8 OLD > NEW`"
    return "convert it to UTF-8: if it is Latin-1, as older data often is, by `iconv -f latin1 -t utf-8 OLD > NEW`"


def may_join(options: Mapping[str, Any]) -> bool:
    """Return whether a record may hold parts of several rows: one text, no label, and no kept column.

    `options`: as in the fingerprint.
    """
    return not (options["label_column"] or options["keep_columns"]) and len(options["text_columns"]) == 1


def against_padding(options: Mapping[str, Any]) -> str:
    """Return options of `build` that reduce padding and go with all others. `options`: as `may_join`."""
    if options.get("bucket_lengths"):
        return "shorter --bucket-lengths"
    ways = []
    is_plain = options.get("stride") is None and options["layout"] == "pad"
    if options["layout"] == "chat" and may_join(options) and not options.get("pack_rows"):
        ways.append("--pack-rows")
    if is_plain and may_join(options) and options["truncation"] == "longest_first":
        ways.append("--layout pack")
    if is_plain:
        ways.append("--bucket-lengths auto:4")
    return ", ".join([*ways, "or a smaller --max-length" if ways else "a smaller --max-length"])


def about_fim(counts: Mapping[str, int], *, rows: int, length: int) -> str:
    """Describe the rows of fill-in-the-middle among `rows`, counted as in `Ledger.fim`."""
    rewritten = counts.get("psm", 0) + counts.get("spm", 0)
    text = f"fill-in-the-middle: {rewritten:,} of {rows:,} documents, {counts.get('spm', 0):,} with the suffix first"
    if longer := counts.get("longer_than_row"):
        text += f"; {longer:,} are longer than a row of {length:,} tokens, so their middle is in another row: "
        text += "--layout pack keeps documents whole"
    if unchanged := counts.get("unchanged"):
        text += f"; {unchanged:,} more stay as they are, since they would grow past {length:,} tokens"
    return text
