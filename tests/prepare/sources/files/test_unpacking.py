"""Compressed streams are unpacked to the last byte, and damage to any of them is an error with its place."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipelines.prepare.sources.files.byte_ranges import DecompressedStream, compression_suffix
from tests.prepare.sources.ingest.ingesting import PACKERS
from tests.support.speed import slow_but
from tfrecord_io.errors import SourceError

PACKED = [suffix for suffix in PACKERS if suffix]
TEXT = b"".join(random.Random(1).randbytes(30).hex().encode() + b"\n" for _ in range(3000))


def unpacked(packed: bytes, suffix: str) -> bytes:
    with io.BufferedReader(DecompressedStream(io.BytesIO(packed), suffix, shown="a")) as stream:
        return stream.read()


@pytest.mark.parametrize("suffix", slow_but(PACKED, ".gz"))
@given(parts=st.lists(st.binary(max_size=40), max_size=4))
def test_streams_one_after_another_are_one(suffix: str, parts: list[bytes]) -> None:
    assert unpacked(b"".join(map(PACKERS[suffix], parts)), suffix) == b"".join(parts)


@pytest.mark.parametrize("suffix", PACKED)
def test_zeros_behind_a_stream_fill_up_a_block(suffix: str) -> None:
    assert unpacked(PACKERS[suffix](TEXT) + bytes(20_000), suffix) == TEXT


@pytest.mark.parametrize("suffix", PACKED)
def test_any_cut_is_an_error(suffix: str) -> None:
    packed = PACKERS[suffix](TEXT)
    for kept in [*range(1, 20), len(packed) // 3, *range(len(packed) - 20, len(packed))]:
        with pytest.raises(SourceError, match="it ends in the middle, at about byte"):
            unpacked(packed[:kept], suffix)


@pytest.mark.parametrize("suffix", PACKED)
def test_what_follows_a_stream_and_is_none_is_an_error(suffix: str) -> None:
    with pytest.raises(SourceError, match=r"a: cannot be decompressed: .* at about byte "):
        unpacked(PACKERS[suffix](TEXT) + b"garbage, and some more of it", suffix)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_damage_to_any_byte_is_an_error_or_makes_no_difference(suffix: str) -> None:
    packed = bytearray(PACKERS[suffix](TEXT))
    for place in random.Random(2).sample(range(len(packed)), 60):
        damaged = bytearray(packed)
        damaged[place] ^= 0x55
        with contextlib.suppress(SourceError):
            assert unpacked(bytes(damaged), suffix) == TEXT


def test_frames_that_are_to_be_skipped_are_skipped() -> None:
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"note!"
    assert unpacked(skippable + PACKERS[".zst"](TEXT) + skippable, ".zst") == TEXT


def test_a_zst_with_a_checksum_is_checked() -> None:
    packed = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
    packed[-1] ^= 1
    with pytest.raises(SourceError, match="hecksum"):
        unpacked(bytes(packed), ".zst")


@pytest.mark.parametrize("pack", [PACKERS[".gz"], PACKERS[".zst"]])
def test_what_was_made_to_be_large_is_unpacked_piece_by_piece(pack: Callable[[bytes], bytes]) -> None:
    suffix = ".gz" if pack is PACKERS[".gz"] else ".zst"
    stream = io.BufferedReader(DecompressedStream(io.BytesIO(pack(bytes(64 << 20))), suffix, shown="a"))
    assert stream.read(1000) == bytes(1000)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a.jsonl.gz", ".gz"), ("A.TXT.ZST", ".zst"), ("https://h/a.csv.xz?sig=1", ".xz"), ("a.jsonl", ""), ("gz", "")],
)
def test_the_name_says_how_a_file_is_packed(path: str, expected: str) -> None:
    assert compression_suffix(path) == expected
