"""Shards are what TensorFlow writes, and no byte of one can be changed unnoticed."""

import gzip
import io
import pathlib
import re
import struct
import tracemalloc
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support import frames
from tfrecord_io import records
from tfrecord_io.errors import ConfigError, CorruptRecordError

THREE = [b"first", b"", b"the third, of more than sixteen bytes"]
messages_lists = st.lists(st.binary(max_size=70), max_size=6)


shard = frames.framed


def read(
    data: bytes, *, compression: records.Compression = "none", batch_bytes: int = 8 << 20, place: str = "shard-7"
) -> list[bytes]:
    stream = io.BytesIO(data)
    batches = records.read_payloads(stream, compression=compression, place=place, batch_bytes=batch_bytes)
    return [message for batch in batches for message in batch]


def both_ways(data: bytes) -> list[bytes]:
    """Scans and streams; both must come to the same messages or to the same error."""
    try:
        scanned = list(frames.messages_of(data, place="shard-7"))
    except CorruptRecordError as error:
        with pytest.raises(CorruptRecordError, match=re.escape(str(error))):
            read(data, batch_bytes=7)
        raise
    assert read(data, batch_bytes=7) == scanned
    return scanned


def test_frames_are_those_of_tensorflow(tmp_path: pathlib.Path) -> None:
    messages = [*THREE, bytes(range(256)) * 100]
    with tf.io.TFRecordWriter(str(tmp_path / "tf.tfrecord")) as writer:
        for message in messages:
            writer.write(message)
    assert shard(messages) == (tmp_path / "tf.tfrecord").read_bytes()


@given(messages=messages_lists, batch_bytes=st.integers(1, 200), compression=st.sampled_from(["none", "gzip"]))
def test_batches_of_any_size_give_messages_back(messages: list[bytes], batch_bytes: int, compression: Any) -> None:
    data = gzip.compress(shard(messages)) if compression == "gzip" else shard(messages)
    assert read(data, compression=compression, batch_bytes=batch_bytes) == messages


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_memory_does_not_grow_with_the_shard(compression: records.Compression) -> None:
    data = shard([bytes(1000)] * 20_000)
    stream = io.BytesIO(gzip.compress(data) if compression == "gzip" else data)
    read(shard(THREE))  # compiles
    tracemalloc.start()
    batches = records.read_payloads(stream, compression=compression, place="here", batch_bytes=100_000)
    num_records = sum(len(batch) for batch in batches)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_records == 20_000
    assert peak_bytes < 1_000_000 < len(data)


class Trickle(io.RawIOBase):
    """A stream that gives one byte at a time, as sockets may."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, 1))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_short_reads_are_not_the_end(compression: records.Compression) -> None:
    data = gzip.compress(shard(THREE)) if compression == "gzip" else shard(THREE)
    batches = records.read_payloads(Trickle(data), compression=compression, place="here")  # type: ignore[arg-type]
    assert [message for batch in batches for message in batch] == THREE


@pytest.mark.parametrize(("compression", "batch_bytes"), [("none", 0), ("none", -1), ("zlib", 10)])
def test_options_that_would_lose_records_are_refused_at_once(compression: str, batch_bytes: int) -> None:
    options: Any = {"compression": compression, "batch_bytes": batch_bytes}
    with pytest.raises(ConfigError, match=f"compression is '{compression}' and batch_bytes is {batch_bytes}, expected"):
        records.read_payloads(io.BytesIO(), place="here", **options)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_changed_byte_of_a_shard_is_found(flip: int) -> None:
    data = shard(THREE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= flip
        with pytest.raises(CorruptRecordError, match=r"shard-7, record [012] at byte"):
            both_ways(bytes(damaged))


def test_a_shard_cut_anywhere_but_between_records_is_found() -> None:
    data = shard(THREE)
    whole = {len(shard(THREE[:count])): count for count in range(4)}
    for length in range(len(data) + 1):
        if length in whole:  # a sound, shorter shard: only the manifest's count tells
            assert both_ways(data[:length]) == THREE[: whole[length]]
        else:
            with pytest.raises(CorruptRecordError, match=r"shard-7, record [012] at byte .*: cut off, with .*missing"):
                both_ways(data[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            shard(THREE)[:25],
            "record 1 at byte 21: cut off, with at least 8 missing bytes; run .*verify DATASET --repair",
        ),
        (shard(THREE)[:-10], r"record 2 at byte 37: cut off, with 10 missing bytes"),
        (shard(THREE) + b"\0" * 12, r"record 3 at byte 90: size crc 0x[0-9a-f]{8}, expected 0x00000000"),
        (shard(THREE)[:-1] + b"\0", r"record 2 at byte 37: data crc 0x([0-9a-f]{8}), expected 0x00\1|expected 0x00"),
    ],
)
def test_damage_is_named_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(CorruptRecordError, match=f"shard-7, {words}"):
        both_ways(data)


@pytest.mark.parametrize("size", [records.MOST_RECORD_BYTES + 1, 2**63 - 1, 2**63, 2**64 - 16, 2**64 - 1])
def test_a_huge_size_with_a_right_crc_is_refused_before_anything_is_gathered(size: int) -> None:
    header = struct.pack("<Q", size)
    data = shard([b"ok"]) + header + struct.pack("<I", records.masked_crc32c(header)) + b"abcdefgh"
    words = f"record 1 at byte 18: {size:,} bytes, expected at most {records.MOST_RECORD_BYTES:,}"
    with pytest.raises(CorruptRecordError, match=words):
        both_ways(data)


def test_every_changed_byte_of_a_gzip_shard_is_found_or_harmless() -> None:
    """Harmless: header fields such as the time stamp, which no crc covers. The records are then the same."""
    data, refused = gzip.compress(shard(THREE), mtime=0), 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        try:
            assert read(bytes(damaged), compression="gzip") == THREE
        except CorruptRecordError:
            refused += 1
    assert refused == len(data) - 6  # mtime (4), extra flags, operating system


def test_a_gzip_shard_cut_anywhere_is_found() -> None:
    data = gzip.compress(shard(THREE))
    for length in range(len(data)):
        with pytest.raises(CorruptRecordError, match="shard-7: the gzip data is cut off"):
            read(data[:length], compression="gzip", batch_bytes=20)


@pytest.mark.parametrize("more", [b"\0", gzip.compress(b"", mtime=0)])
@pytest.mark.parametrize("batch_bytes", [1, 8 << 20])
def test_bytes_after_the_gzip_data_are_found(more: bytes, batch_bytes: int) -> None:
    with pytest.raises(CorruptRecordError, match="shard-7: bytes follow the gzip data"):
        read(gzip.compress(shard(THREE)) + more, compression="gzip", batch_bytes=batch_bytes)


def test_a_shard_that_is_not_gzip_is_named() -> None:
    with pytest.raises(CorruptRecordError, match=r"shard-7: damaged gzip data \(.*incorrect header check\)"):
        read(shard(THREE), compression="gzip")
