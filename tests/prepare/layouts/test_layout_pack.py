"""Packed rows hold every token of every document once, in full rows, as a packer that is slow and plain fills them."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.layouts.base import Encoded
from pipelines.prepare.layouts.documents import PackBuilder
from pipelines.prepare.layouts.packing import pack
from pipelines.prepare.tokenize.ragged import from_lists
from tests import building
from tests.building import built, read_rows
from tests.support import seams

UINT16 = np.dtype(np.uint16)
PAD = 0
# On both sides of the bitmap's word size.
ROW_LENGTHS = st.sampled_from([1, 2, 3, 7, 8, 16, 63, 64, 65, 4095, 4096, 4097, 70_000])


class Part(NamedTuple):
    """Tokens [first, first + size) of a document; `place` counts the parts in the documents' order."""

    place: int
    document: int
    first: int
    size: int


def plainly_packed(lengths: Sequence[int], *, length: int, most: int | None = None) -> list[list[Part]]:
    """The parts of each row, in order: best fit, longest first, a look at every row; rows by what opened them."""
    cuts = [(document, first) for document, size in enumerate(lengths) for first in range(0, size, length)]
    parts = [
        Part(place, document, first, min(length, lengths[document] - first))
        for place, (document, first) in enumerate(cuts)
    ]
    rows: list[tuple[int, int, list[Part]]] = []  # room, when it last changed, parts
    for step, part in enumerate(sorted(parts, key=lambda part: (-part.size, part.place))):
        fitting = [at for at, (room, _, held) in enumerate(rows) if room >= part.size and len(held) != most]
        at = min(fitting, key=lambda at: (rows[at][0], -rows[at][1]), default=len(rows))
        room, _, held = rows[at] if fitting else (length, step, [])
        rows[at : at + 1] = [(room - part.size, step, [*held, part])]
    return [sorted(held) for _, _, held in sorted(rows, key=lambda row: row[2][0])]


def expected_rows(content: list[list[int]], *, length: int) -> dict[str, list[list[int]]]:
    laid_out: dict[str, list[list[int]]] = {"input_ids": [], "segment_ids": [], "positions": []}
    for row in plainly_packed([len(tokens) for tokens in content], length=length):
        ids = [token for part in row for token in content[part.document][part.first : part.first + part.size]]
        padding = [0] * (length - len(ids))
        laid_out["input_ids"].append(ids + [PAD] * len(padding))
        marks = [segment for segment, part in enumerate(row, start=1) for _ in range(part.size)]
        laid_out["segment_ids"].append(marks + padding)
        laid_out["positions"].append([at for part in row for at in range(part.size)] + padding)
    return laid_out


def encoded(lists: list[list[int]], masks: list[list[int]]) -> Encoded:
    ragged = {"input_ids": from_lists(lists, dtype=UINT16), "loss_mask": from_lists(masks, dtype=np.dtype(np.uint8))}
    reasons = np.full(len(lists), "", object)
    return Encoded(ragged=ragged, arrays={}, reasons=reasons, full_lengths=ragged["input_ids"].lengths)


@pytest.mark.slow
@given(lengths=st.lists(st.integers(0, 100), max_size=40), length=ROW_LENGTHS, most=st.none() | st.integers(1, 4))
def test_rows_are_those_of_a_packing_that_looks_at_every_row(lengths: list[int], length: int, most: int | None) -> None:
    packing = pack(np.array(lengths, np.int64), length=length, most=most)
    packed = [[(document, stop - start) for document, start, stop in packing.parts(row)] for row in range(len(packing))]
    expected = plainly_packed(lengths, length=length, most=most)
    assert packed == [[(part.document, part.size) for part in row] for row in expected]
    assert packing.firsts.tolist() == [part.first for row in expected for part in row]


@given(
    sizes=st.lists(st.integers(0, 30), max_size=60),
    length=st.integers(1, 24),
    chunk=st.integers(1, 200),
    seed=st.none() | st.integers(0, 9),
)
def test_records_are_the_documents_with_their_mask_and_lineage(
    sizes: list[int], length: int, chunk: int, seed: int | None
) -> None:
    """All tokens are distinct. Documents with an odd total number of tokens are learned."""
    content = [list(range(start, stop)) for start, stop in itertools.pairwise(np.cumsum([10, *sizes]).tolist())]
    masks = [[token % 2 for token in tokens] for tokens in content]
    builder = PackBuilder(length=length, pad_id=PAD)
    order = list(range(len(content)))
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    expected = expected_rows([content[at] for at in order], length=length)
    with pytest.MonkeyPatch.context() as patch:
        seams.put(patch, chunk_tokens=chunk)
        builder.add(encoded(content, masks))
        chunks = list(builder.chunks(None if seed is None else np.random.default_rng(seed)))
    columns = {name: [row for part in chunks for row in part[name].tolist()] for name in (*expected, "loss_mask")}
    assert columns.pop("loss_mask") == [[at % 2 * (at != PAD) for at in row] for row in expected["input_ids"]]
    assert columns == expected
    assert builder.rows_used == len(sizes)
    builder.add(encoded(content, masks))
    lineage = builder.lineage(None if seed is None else np.random.default_rng(seed))
    for row, ids in enumerate(expected["input_ids"]):
        for piece in lineage(row):
            assert set(ids[piece.start : piece.stop]) <= set(content[piece.row])


@pytest.mark.parametrize(("median", "spread", "length", "at_least"), [(300, 1.0, 2048, 0.999), (180, 0.7, 512, 0.99)])
def test_rows_of_natural_texts_are_full(median: int, spread: float, length: int, at_least: float) -> None:
    """Long documents are spread over the shard; in the order of opening, they would all come first."""
    rng = np.random.default_rng(median)  # log-normal, as the lengths of pages, articles and reviews are
    lengths = np.maximum(1, rng.lognormal(np.log(median), spread, 20_000)).astype(np.int64)
    packing = pack(lengths, length=length)
    assert float(lengths.sum()) / (len(packing) * length) > at_least
    segments_per_row = np.diff(packing.edges)
    halves = segments_per_row[: len(packing) // 2].mean(), segments_per_row[len(packing) // 2 :].mean()
    assert 0.8 < halves[0] / halves[1] < 1.25


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_documents_without_any_token_are_used_and_leave_no_trace(tmp_path: Path, layout: str) -> None:
    texts = ["", "the film was good", " ", "never again", ""]
    data = building.source(tmp_path / "data", train=[{"text": text} for text in texts])
    root = built(data, layout=layout, special_tokens="none", max_length=16, no_shuffle=True)
    ids = load_tokenizer(str(root))(texts, add_special_tokens=False)["input_ids"]
    rows = read_rows(root, "train")
    real = np.arange(16) < rows["num_tokens"][:, None] if layout == "concat" else rows["segment_ids"] > 0
    assert rows["input_ids"][real].tolist() == [token for document in ids for token in document]
    assert building.read_manifest(root).splits["train"].ledger.rows_used == len(texts)
    traced = building.command("trace", root, "--split", "train", "--shard", 0, "--record", 0, "--json")
    assert [row["row"] for row in json.loads(traced.out)["rows"]] == [1, 3]


def test_the_example_in_the_docs_of_the_format_is_what_is_made() -> None:
    """In letters; `|` separates records and documents."""
    text = (building.REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    section = text.partition("### Layout `pack`")[2].partition("\n### ")[0]
    lines = dict(re.findall(r"^(documents|input_ids|segment_ids|positions) +(.+)$", section, re.MULTILINE))
    letters = {letter: index for index, letter in enumerate("_.abcdefghijklmnopqrstuvwxyz")}
    content = [[letters[letter] for letter in part.split()] for part in lines.pop("documents").split("|")]
    builder = PackBuilder(length=8, pad_id=letters["_"])
    documents = [[*letters_of_document, letters["."]] for letters_of_document in content]
    builder.add(encoded(documents, documents))
    (chunk,) = builder.chunks(None)
    spelled = {number: letter for letter, number in letters.items()}
    for name, line in lines.items():
        shown = [part.split() for part in line.partition("(")[0].split("|")]
        names = spelled if name == "input_ids" else {number: str(number) for number in range(9)}
        assert shown == [[names[token] for token in row] for row in chunk[name].tolist()]
    assert len(lines) == 3
