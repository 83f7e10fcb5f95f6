"""What BERT's normalizer and pre-tokenizer make of each code point, found out by asking them.

Why a code point can be asked alone. BertNormalizer and BertPreTokenizer (of the `tokenizers` library, 0.23) are a chain
of steps, each of which looks at one code point at a time, whatever stands beside it:

    clean_text             drops U+0000, U+FFFD and controls, makes white space a space
    handle_chinese_chars   puts a space on both sides of an ideograph
    strip_accents          canonical decomposition (NFD), then drops nonspacing marks
    lowercase              lower-cases by Unicode's table for single code points: no rule for a final sigma
    split at white space, which is dropped; then at punctuation, of which each becomes a word of its own

with one exception: NFD also sorts neighbouring marks by their combining class (ccc). Nonspacing marks are dropped right
after it, so the order shows only where two marks *remain* next to each other: U+1B44 and U+302E are such marks, some
hundred exist. The sort moves no mark over a code point of ccc 0, and whatever remains and is no mark has ccc 0. So a
mark that remains is REORDERED, which is ORDINARY unless it is the next to remain after another one. Whether a code
point is such a mark is asked, too, of NFD: a mark of any ccc but 0 changes places with a U+0334 (ccc 1) behind it or a
U+0345 (ccc 240, the highest) before it. Without strip_accents there is no NFD at all.

An entry, 64 bits, by kind (the lowest 3):

    DROP, SPACE     nothing more
    ISOLATED        bits 3-: id of the single character that remains, which stands alone
    ORDINARY,       bits 3-7: bytes, 8-12: characters, 13-: place in `pool` of what becomes of it, as UTF-8
    REORDERED
    ASK             none of these; the reference does the document

Asked for are pages of 256 code points, when a text first holds one of theirs: 1 ms a page. All 4,352 pages would take
14 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import normalizers

from pipelines.prepare.tokenize.engines.code_points import PAGE, changed_between_marks, letters_of_page, one_by_one
from pipelines.prepare.tokenize.engines.text_kernels import ASK, DROP, ISOLATED, ORDINARY, REORDERED, SPACE

__all__ = ["Reader"]

# What becomes of a code point, by kinds. That there are as many characters as it has bytes, at most, is asked besides:
# that no document has more ids than bytes rests on it.
_ORDINARY = {(ORDINARY,) * count for count in range(1, 4)}
_ALONE = {(ISOLATED,), (SPACE, ISOLATED, SPACE), (SPACE, ORDINARY, SPACE)}
_WITHOUT_TEXT = {(): DROP, (SPACE,): SPACE}


class Reader:
    """Query a tokenizer's normalizer and pre-tokenizer. `id_of` returns the id of a one-character word."""

    def __init__(self, backend: Any, *, strips_accents: bool, id_of: Callable[[str], int]) -> None:
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._strips_accents = strips_accents
        self._id_of = id_of
        self._strip = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
        )

    def page(self, number: int, pool: bytearray) -> list[int]:
        """Return the entries of one page, and append the bytes that they refer to to `pool`."""
        points = letters_of_page(number)
        if not points:
            return [ASK] * PAGE
        become = one_by_one(self._normalizer.normalize_str, points)
        kinds = self._kinds(sorted(set("".join(become))))
        marks = self._marks(points) if self._strips_accents else set()
        return [
            self._entry(point, text, kinds=kinds, is_mark=point in marks, pool=pool)
            for point, text in zip(points, become, strict=True)
        ]

    def _entry(self, point: str, text: str, *, kinds: dict[str, int], is_mark: bool, pool: bytearray) -> int:
        found = tuple(map(kinds.__getitem__, text))
        if found in _ORDINARY and len(text) <= len(point.encode()):
            data = text.encode()
            entry = (REORDERED if is_mark else ORDINARY) | len(data) << 3 | len(text) << 8 | len(pool) << 13
            pool += data
            return entry
        if found in _ALONE and not is_mark:
            return ISOLATED | self._id_of(text[len(text) // 2]) << 3
        return _WITHOUT_TEXT.get(found, ASK)

    def _kinds(self, letters: list[str]) -> dict[str, int]:
        """Return each code point's kind: ORDINARY, SPACE or ISOLATED, by how it splits the letters around it."""
        spans = {span for _, span in self._pre_tokenizer.pre_tokenize_str(f"x{'x'.join(letters)}x")}
        ends = {end for _, end in spans}
        return {
            letter: ORDINARY if at not in ends else ISOLATED if (at, at + 1) in spans else SPACE
            for letter, at in zip(letters, range(1, 2 * len(letters), 2), strict=True)
        }

    def _marks(self, points: list[str]) -> set[str]:
        """Return the code points that normalize to text with a combining class other than 0."""
        decomposed_or_moved = changed_between_marks(points)
        remain = one_by_one(self._strip.normalize_str, decomposed_or_moved)
        moved = set(changed_between_marks(sorted(set("".join(remain)))))
        return {point for point, text in zip(decomposed_or_moved, remain, strict=True) if moved.intersection(text)}
