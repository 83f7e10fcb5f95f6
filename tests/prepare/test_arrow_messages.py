"""Where the batches of an Arrow file are, as pyarrow's own readers find them, and what is no Arrow file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.prepare.arrow_messages import Layout, layout_of
from tests.prepare.arrow_writing import write

TABLE = pa.table({"number": np.arange(60), "text": [f"row {index}" * (index % 4) for index in range(60)]})


def layout(content: bytes) -> Layout:
    return layout_of(lambda offset, length: content[offset : offset + length], len(content))


@pytest.fixture(params=[True, False], ids=["stream", "file"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_batches_have_their_rows_and_lie_one_behind_the_other(tmp_path: Path, stream: bool) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=stream)).read_bytes()
    found = layout(content)
    assert [batch.num_rows for batch in found.batches] == [25, 25, 10]
    assert [batch.offset for batch in found.batches] == [
        found.schema.stop,
        *(batch.stop for batch in found.batches[:2]),
    ]
    assert not found.dictionaries
    assert not any(batch.is_whole for batch in found.batches)


def test_a_message_is_what_pyarrow_takes_for_one(tmp_path: Path, stream: bool) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=stream)).read_bytes()
    *_, last = layout(content).batches
    batch = pa.ipc.read_record_batch(pa.py_buffer(content[last.offset : last.stop]), TABLE.schema)
    assert batch.to_pylist() == TABLE.slice(50).to_pylist()


@pytest.mark.parametrize("options", [{"use_legacy_format": True}, {"metadata_version": pa.ipc.MetadataVersion.V4}])
def test_what_older_versions_wrote_is_read(tmp_path: Path, stream: bool, options: dict[str, object]) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=stream, **options))
    assert [batch.num_rows for batch in layout(path.read_bytes()).batches] == [25, 25, 10]


def test_metadata_may_be_long(tmp_path: Path, stream: bool) -> None:
    table = pa.table({f"column {index}": [index] for index in range(500)})
    path = Path(write(tmp_path / "a.arrow", table, stream=stream))
    (batch,) = layout(path.read_bytes()).batches
    assert batch.num_rows == 1
    assert batch.metadata_bytes > 16_000


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_is_said_to_be_whole(tmp_path: Path, stream: bool, compression: str) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE, stream=stream, compression=compression))
    assert all(batch.is_whole for batch in layout(path.read_bytes()).batches)


def test_a_batch_with_notes_is_said_to_be_whole() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_batch(TABLE.to_batches()[0], custom_metadata={"ARROW:experimental_compression": "lz4"})
    assert [batch.is_whole for batch in layout(sink.getvalue().to_pybytes()).batches] == [True]


def test_the_batches_of_a_file_are_those_that_its_footer_tells_of(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=False))
    content = path.read_bytes()
    found = layout(content)
    blocks = [struct.pack("<qi4xq", batch.offset, batch.metadata_bytes, batch.body_bytes) for batch in found.batches]
    first, _, third = (content.rindex(block) for block in blocks)
    swapped = bytearray(content)
    swapped[first : first + 24], swapped[third : third + 24] = blocks[2], blocks[0]
    assert layout(bytes(swapped)).batches == found.batches[::-1]
    path.write_bytes(swapped)
    assert pa.ipc.open_file(str(path)).get_batch(0).num_rows == 10


def test_in_a_stream_a_batch_knows_the_dictionaries_before_it_and_in_a_file_all(stream: bool) -> None:
    sink = pa.BufferOutputStream()
    tables = [pa.table({"word": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["a", "b", "c"])]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, tables[0].schema, options=options) as writer:
        for table in tables:
            writer.write_table(table)
    found = layout(sink.getvalue().to_pybytes())
    known = [found.before(batch) for batch in found.batches]
    first, second = found.dictionaries
    assert known == [[found.schema, first] if stream else [found.schema, first, second], [found.schema, first, second]]


def test_a_stream_may_end_without_its_mark(tmp_path: Path) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE)).read_bytes()
    assert layout(content[:-8]).batches == layout(content).batches


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "it does not begin with a schema"),
        (b"\xff" * 3, "its metadata is damaged"),
        (b"\xff\xff\xff\xff\0\0\0\0", "it does not begin with a schema"),
        (b"PAR1, or another format altogether", "it ends amid a message, or there is none at byte 0"),
        (b"\xff\xff\xff\xff\x10\0\0\0" + b"\xee" * 16, "its metadata is damaged"),
        (b"ARROW1\0\0", "it does not begin with a schema"),
    ],
)
def test_what_is_no_arrow_file_is_said_not_to_be_one(content: bytes, cause: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=cause):
        layout(content)


def test_a_file_that_is_cut_off_anywhere_is_said_to_be(tmp_path: Path) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=False)).read_bytes()
    for length in range(len(content)):
        with pytest.raises(pa.ArrowInvalid):
            layout(content[:length])


def test_a_stream_that_is_cut_off_anywhere_but_between_messages_is_said_to_be(tmp_path: Path) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE, chunk=25)).read_bytes()
    whole = layout(content)
    ends = [whole.schema.stop, *(batch.stop for batch in whole.batches)]
    for length in range(len(content)):
        if length not in ends:
            with pytest.raises(pa.ArrowInvalid):
                layout(content[:length])
    assert [len(layout(content[:end]).batches) for end in ends] == [0, 1, 2, 3]


def test_a_message_of_fewer_bytes_than_its_metadata_tells_is_an_error(tmp_path: Path) -> None:
    content = Path(write(tmp_path / "a.arrow", TABLE, chunk=25, stream=False)).read_bytes()
    *_, last = layout(content).batches
    body = struct.pack("<q", last.body_bytes)
    head = content[last.offset : last.offset + last.metadata_bytes]
    longer = head.replace(body, struct.pack("<q", 1 << 40), 1)
    assert longer != head
    with pytest.raises(pa.ArrowInvalid, match="and a message up to byte 1099511"):
        layout(content.replace(head, longer))
