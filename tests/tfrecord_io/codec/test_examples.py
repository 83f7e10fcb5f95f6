"""The bytes equal those from TensorFlow's own serializer; then the bytes are damaged."""

import contextlib
from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.support import frames
from tfrecord_io import examples, records
from tfrecord_io.errors import CorruptRecordError, SchemaError
from tfrecord_io.examples import Payloads
from tfrecord_io.schema import DType, Feature, Schema

Columns = dict[str, np.ndarray]

INT_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
TRICKY_NAMES = ["a", "a_b", "a.b", "a-b", "ab", "B", "b", "_", "Ba", "x" * 127, "x" * 128]
# Every size of a varint has its first and its last value here.
VARINT_EDGES = [2**bits + step for bits in range(0, 63, 7) for step in (-1, 0)] + [2**63 - 1, -1, -(2**31), -(2**63)]
FLOAT_BITS = [0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x00000001, 0x3F800000]

OBJECTS = {"string": st.text(max_size=200), "bytes": st.binary(max_size=200)}


def feature(name: str, dtype: DType = "int64", shape: tuple[int, ...] = ()) -> Feature:
    return Feature(name=name, dtype=dtype, shape=shape, role="column")


def by_tensorflow(columns: Columns, schema: Schema, row: int) -> bytes:
    example = tf.train.Example()
    for item in schema.features:
        target = example.features.feature[item.name]
        if item.is_bytes:
            value = columns[item.name][row]
            target.bytes_list.value.append(value if item.dtype == "bytes" else value.encode("utf-8", "surrogateescape"))
            continue
        values = columns[item.name][row].reshape(-1)
        if item.dtype == "int64":
            target.int64_list.value.extend(values.tolist())
        else:  # by way of bytes: a Python float would quiet a signalling NaN
            raw = values.tobytes()
            target.float_list.CopyFrom(tf.train.FloatList.FromString(b"\x0a" + varint(len(raw)) + raw))
    return bytes(example.SerializeToString(deterministic=True))


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value >= 0x80 else bytes([value])


def field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def entry(name: str, packed: bytes, kind: int = 0x1A) -> bytes:
    return field(0x0A, field(0x0A, name.encode()) + field(0x12, field(kind, field(0x0A, packed))))


def as_payloads(messages: list[bytes]) -> Payloads:
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int64)
    return Payloads(np.frombuffer(b"".join(messages), np.uint8), offsets)


def bits(columns: Columns) -> list[Any]:
    return [
        (name, column.dtype, column.shape, column.tolist() if column.dtype == object else column.tobytes())
        for name, column in columns.items()
    ]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Columns, Schema]:
    names = draw(st.lists(st.sampled_from(TRICKY_NAMES), min_size=1, max_size=5, unique=True))
    shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
    kinds = st.sampled_from(get_args(DType))
    drawn_kinds = [(name, draw(kinds)) for name in names]
    schema = Schema(tuple(feature(name, kind, () if kind in OBJECTS else draw(shapes)) for name, kind in drawn_kinds))
    num_rows = draw(st.integers(0, 4))
    ints = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 40_000), st.sampled_from(VARINT_EDGES))
    bits = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(FLOAT_BITS))
    columns = {}
    for item in schema.features:
        if item.is_bytes:
            objects = draw(st.lists(OBJECTS[item.dtype], min_size=num_rows, max_size=num_rows))
            columns[item.name] = np.array([*objects, None], object)[:-1]
            continue
        count = num_rows * item.num_values
        drawn = draw(st.lists(ints if item.dtype == "int64" else bits, min_size=count, max_size=count))
        flat = np.array(drawn, np.int64 if item.dtype == "int64" else np.uint32).view(item.dtype)
        columns[item.name] = flat.reshape(num_rows, *item.shape)
    return columns, schema


def assert_framed(written: Payloads, payloads: Payloads) -> None:
    assert written.data.tobytes() == frames.framed(payloads)
    assert np.diff(written.offsets).tolist() == (np.diff(payloads.offsets) + records.FRAME_BYTES).tolist()


@given(tables())
def test_every_record_is_what_tensorflow_serializes_and_gives_every_bit_back(table: tuple[Columns, Schema]) -> None:
    columns, schema = table
    payloads = examples.encode(columns, schema)
    assert list(payloads) == [by_tensorflow(columns, schema, row) for row in range(len(payloads))]
    assert len(payloads) == len(next(iter(columns.values())))
    assert_framed(records.encode_framed(columns, schema), payloads)
    assert bits(examples.decode(payloads, schema, place="here")) == bits(columns)


@pytest.mark.parametrize("dtype", INT_DTYPES)
def test_every_int_dtype_gives_the_bytes_of_its_values_as_int64(dtype: str) -> None:
    limits = [0, 1] if dtype == "bool" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1, 100]
    column, schema = np.array([limits, limits[::-1]], dtype), Schema((feature("ids", shape=(len(limits),)),))
    columns = {"ids": column.astype(np.int64)}
    expected = [by_tensorflow(columns, schema, row) for row in range(2)]
    assert list(examples.encode({"ids": column}, schema)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
@given(data=st.data())
def test_rows_that_are_written_many_values_at_a_time_are_no_different(dtype: str, data: st.DataObject) -> None:
    edges = [value for value in VARINT_EDGES if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max]
    usual, few = st.integers(0, 2**21 - 1), st.sampled_from([*edges, 0, 5, 300, 20_000])
    # Rows of values that fit three bytes, like token ids, or one byte; and rows with a larger value.
    value = data.draw(st.sampled_from([usual, st.integers(0, 127), few, st.one_of(usual, few)]))
    length = data.draw(st.integers(1, 150))
    rows = data.draw(st.lists(st.lists(value, min_size=length, max_size=length), min_size=1, max_size=3))
    columns, schema = {"ids": np.array(rows, dtype)}, Schema((feature("ids", shape=(length,)), feature("z")))
    columns["z"] = np.arange(len(rows))
    assert list(examples.encode(columns, schema)) == [by_tensorflow(columns, schema, row) for row in range(len(rows))]


@pytest.mark.parametrize("length", [18, 42, 43, 60, 127, 128, 5_461, 5_462])
def test_headers_are_right_where_each_row_has_another_size_than_the_one_before(length: int) -> None:
    rows = np.array([0, 2**20, 1, 200, -1, 0, 2**62, 128, 127])
    columns = {"ids": np.repeat(rows[:, None], length, axis=1), "a": rows, "score": np.ones(len(rows), np.float32)}
    schema = Schema((feature("ids", shape=(length,)), feature("a"), feature("score", "float32")))
    payloads = examples.encode(columns, schema)
    assert list(payloads) == [by_tensorflow(columns, schema, row) for row in range(len(rows))]
    assert_framed(records.encode_framed(columns, schema), payloads)


def test_how_an_array_lies_in_memory_does_not_matter() -> None:
    schema = Schema((feature("ids", shape=(6,)),))
    plain = np.arange(24, dtype=np.int32).reshape(4, 6) * 1000
    misaligned = np.frombuffer(b"x" + plain.tobytes(), np.int32, offset=1).reshape(4, 6)
    strided = np.repeat(plain, 2, axis=1)[:, ::2]
    expected = list(examples.encode({"ids": plain}, schema))
    for column in (np.asfortranarray(plain), strided, plain.astype(">i4"), misaligned):
        assert list(examples.encode({"ids": column}, schema)) == expected


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"ids": np.zeros((2, 3), int)}, r"\['score'\] missing"),
        ({"ids": np.zeros((2, 3), int), "score": np.zeros(2, np.float32), "more": np.zeros(2)}, r"\['more'\] unknown"),
        ({"ids": np.zeros((2, 4), int), "score": np.zeros(2, np.float32)}, r"'ids': shape \(2, 4\), expected \(2, 3\)"),
        ({"ids": np.zeros((2, 3), int), "score": np.zeros(3, np.float32)}, r"'score': shape \(3,\), expected \(2,\)"),
        ({"ids": np.zeros((), int), "score": np.zeros(0, np.float32)}, r"'ids': shape \(\), expected \(0, 3\)"),
        ({"ids": np.zeros((2, 3), np.uint64), "score": np.zeros(2, np.float32)}, "'ids': dtype uint64, expected bool"),
        ({"ids": np.zeros((2, 3), np.float32), "score": np.zeros(2, np.float32)}, "'ids': dtype float32"),
        ({"ids": np.zeros((2, 3), int), "score": np.zeros(2, int)}, "dtype int64, expected float32"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_refused(columns: Columns, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        examples.encode(columns, Schema((feature("ids", shape=(3,)), feature("score", "float32"))))


SMALL = Schema((feature("ids", shape=(3,)), feature("score", "float32"), feature("Z")))
SMALL_COLUMNS: Columns = {
    "ids": np.array([[1, 300, -1], [2, 3, 4], [70_000, 0, 2**62]]),
    "score": np.array([1.5, np.nan, -0.0], np.float32),
    "Z": np.array([0, 127, 128]),
}


@given(st.data())
def test_edited_records_are_refused_or_are_canonical(data: st.DataObject) -> None:
    """So no changed record decodes to its original values."""
    messages = [bytearray(message) for message in examples.encode(SMALL_COLUMNS, SMALL)]
    for _ in range(data.draw(st.integers(1, 3))):
        message = messages[data.draw(st.integers(0, 2))]
        start = data.draw(st.integers(0, len(message)))
        message[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    edited = [bytes(message) for message in messages]
    with contextlib.suppress(CorruptRecordError):
        assert list(examples.encode(examples.decode(as_payloads(edited), SMALL, place="here"), SMALL)) == edited


A2 = Schema((feature("a", shape=(2,)), feature("b")))
TEN_BYTES_TOO_LARGE = b"\xff" * 9 + b"\x02"


WRONG_RECORDS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes, expected at least 3"),
    "no map": (b"\x0b\x00\x00", "not an Example of 3 bytes"),
    "no second entry": (field(0x0A, entry("a", b"\1\2")), "'b', int64.*found another entry.*none.*the end"),
    "other order": (field(0x0A, entry("b", b"\1") + entry("a", b"\1\2")), "'a', int64.*found another entry"),
    "floats": (field(0x0A, entry("a", b"\1\2", kind=0x12) + entry("b", b"\1")), "'a'.*another kind of list"),
    "too many": (field(0x0A, entry("a", b"\1\2\3") + entry("b", b"\1")), r"'a', int64\[2\], found 3 values"),
    "padded varint": (field(0x0A, entry("a", b"\x81\x00\2") + entry("b", b"\1")), "'a'.*not a minimal varint"),
    "65 bits": (field(0x0A, entry("a", b"\1" + TEN_BYTES_TOO_LARGE) + entry("b", b"\1")), "'a'.*varint of 64 bits"),
    "cut varint": (field(0x0A, entry("a", b"\1\2\x80") + entry("b", b"\1")), "'a'.*not a minimal varint"),
    "more entries": (field(0x0A, entry("a", b"\1\2") + entry("b", b"\1") * 2), "expected the end.*12 more bytes"),
    "more fields": (field(0x0A, entry("a", b"\1\2") + entry("b", b"\1")) + b"\x12\0", "not an Example of"),
    "size past the record": (b"\x0a" + varint(2**63) + b"abc", "not an Example of"),
    "size past 63 bits": (field(0x0A, b"\x0a" + varint(2**64 - 1) + b"\x0a\1a\x12"), "'a', int64.*found another entry"),
}


@pytest.mark.parametrize(("record", "words"), WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_what_else_means_the_same_or_nothing_is_named(record: bytes, words: str) -> None:
    good = examples.encode({"a": np.array([[1, 2]]), "b": np.array([3])}, A2)[0]
    with pytest.raises(CorruptRecordError, match=f"shard-7, record 2.*{words}"):
        examples.decode(as_payloads([good, good, record, good]), A2, place="shard-7")


def test_the_first_damaged_record_is_named_whatever_its_feature() -> None:
    good = examples.encode({"a": np.array([[1, 2]]), "b": np.array([3])}, A2)[0]
    late, early = good.replace(b"\1b", b"\1c"), good.replace(b"\1a", b"\1c")
    with pytest.raises(CorruptRecordError, match=r"record 1, byte 15: expected feature 'b'.*verify DATASET --repair"):
        examples.decode(as_payloads([good, late, early]), A2, place="here")


def test_a_huge_shape_in_the_schema_makes_no_room_for_small_records() -> None:
    with pytest.raises(CorruptRecordError, match="expected at least 16777216 for the values"):
        examples.decode(as_payloads([b"abc"]), Schema((feature("a", shape=(2**24,)),)), place="here")


@pytest.mark.parametrize("offsets", [[], [1, 3], [0, 2], [0, 4, 3], [0, 2, 1, 3]])
def test_offsets_that_do_not_cut_up_the_data_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="payload offsets"):
        Payloads(np.zeros(3, np.uint8), np.array(offsets, np.int64))


def test_a_message_outside_the_payloads_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="message 1 of 1"):
        as_payloads([b"abc"])[1]
