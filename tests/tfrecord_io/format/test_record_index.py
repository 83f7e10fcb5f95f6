"""The index of a shard: built while records are written, and validated when it is read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import frames
from tests.support.manifests import make_shard
from tfrecord_io import records
from tfrecord_io.errors import CorruptRecordError, PrepError
from tfrecord_io.format import record_index

MESSAGE_BYTES = st.lists(st.integers(0, 40), max_size=100)


@given(message_bytes=MESSAGE_BYTES)
def test_the_index_holds_where_every_16th_record_begins(message_bytes: list[int]) -> None:
    content = frames.framed(bytes(size) for size in message_bytes)
    index = record_index.dump(np.array(message_bytes, np.int64) + records.FRAME_BYTES)
    read = frames.messages_of(content).offsets[:-1]
    expected = (read + np.arange(len(read)) * records.FRAME_BYTES)[::16].tolist()
    assert np.frombuffer(index, "<u8").tolist() == expected
    described = make_shard(num_examples=len(message_bytes), num_bytes=len(content))
    offsets = record_index.parse(index, shard=described, stride=16, place="here")
    assert offsets.dtype == np.int64
    assert offsets.tolist() == expected


def dumped(*offsets: int) -> bytes:
    return np.array(offsets, "<u8").tobytes()


def test_another_stride_is_read() -> None:
    described = make_shard(num_examples=5, num_bytes=100)
    assert record_index.parse(dumped(0, 40, 80), shard=described, stride=2, place="").tolist() == [0, 40, 80]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(dumped(0, 100), id="too short"),
        pytest.param(dumped(0, 100, 200)[:-1], id="cut off"),
        pytest.param(dumped(1, 100, 200), id="not from 0"),
        pytest.param(dumped(0, 100, 100), id="the same twice"),
        pytest.param(dumped(0, 100, 1000), id="at the end of the shard"),
        pytest.param(dumped(0, 2**63, 2**63 + 1), id="negative as int64"),
    ],
)
def test_what_cannot_be_the_index_of_the_shard_is_refused_with_a_remedy(content: bytes) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        record_index.parse(content, shard=make_shard(num_examples=40, num_bytes=1000), stride=16, place="index/x")
    assert caught.value.cause.startswith("index/x: ")
    assert "prep-tfrecords verify DATASET --repair" in caught.value.remedy


@given(
    content=st.binary(max_size=64) | st.lists(st.integers(0, 300), max_size=8).map(lambda offsets: dumped(*offsets)),
    num_examples=st.integers(1, 100),
    num_bytes=st.integers(1, 300),
)
def test_any_bytes_are_an_index_or_an_error_of_ours(content: bytes, num_examples: int, num_bytes: int) -> None:
    described = make_shard(num_examples=num_examples, num_bytes=num_bytes)
    try:
        offsets = record_index.parse(content, shard=described, stride=16, place="here")
    except PrepError:
        return
    assert len(offsets) == -(-num_examples // 16)
    assert offsets[0] == 0
    assert np.all(np.diff(offsets) > 0)
    assert offsets[-1] < num_bytes
