"""Whatever bytes lie on the disk, a parser gives a sound object or an error of ours: no other exception, no hang, and
no room made on the word of a file.

    documents    receipts, plans, the files of the work folder: any bytes, any JSON, and valid ones with damage in them
    binaries     gzip shards, sizes that are not true, Examples read with another schema

Manifests, record indices, uncompressed shards, and Examples with their own schema are fuzzed beside their own tests.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gzip
import io
import json
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files, receipts, reservation, source_record
from pipelines.prepare.dataset.receipts import Receipt
from pipelines.prepare.plan.planning import SplitPlan
from pipelines.prepare.sources.columns.rejected import RejectedRow
from pipelines.prepare.sources.parquet.groups import Groups, StoredFile
from tests.tfrecord_io.format.test_manifest import JSON, make, make_shard, places
from tfrecord_io import examples, manifest, records
from tfrecord_io.errors import CorruptRecordError, PrepError
from tfrecord_io.examples import Payloads
from tfrecord_io.manifest import Ledger, Split
from tfrecord_io.schema import Feature, Schema

Parsed = TypeVar("Parsed")

FUZZ = settings(
    max_examples=100, deadline=timedelta(seconds=5), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
DEEP = b"[" * 100_000
MANY_DIGITS = b'{"index": ' + b"9" * 10_000 + b"}"


def refused_or(parse: Callable[[], Parsed]) -> Parsed | None:
    """What `parse` gives, or None where it raises an error of ours, with a cause and a remedy."""
    try:
        return parse()
    except PrepError as error:
        refused = error
    assert refused.cause
    assert refused.remedy
    return None


# Damage to JSON documents

HOSTILE_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, -1, 1.0, 1e300, 2**63, 10**400, float("nan"), float("inf"), "", "\ud800", "../x", [], {}]
) | st.builds(lambda depth: json.loads("[" * depth + "]" * depth), st.integers(1, 200))


@st.composite
def edited_values(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three values replaced, swapped, or taken out."""
    edited = {"": copy.deepcopy(document)}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(edited)))
        if draw(st.booleans()) or len(path) == 1:
            put(edited, path, draw(HOSTILE_VALUES | JSON))
        else:
            other = draw(st.sampled_from(places(edited)))
            put(edited, path, copy.deepcopy(get(edited, other)))
    return edited[""]


@st.composite
def edited_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    """The text with one to four pieces flipped, cut out, put in or doubled; or with a key doubled."""
    edited = bytearray(text)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(edited)))
        stop = start + draw(st.integers(0, 30))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "double", "key", "end"]))
        if kind == "flip" and start < len(edited):
            edited[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del edited[start:stop]
        elif kind == "insert":
            edited[start:start] = draw(st.binary(max_size=8))
        elif kind == "double":
            edited[start:start] = edited[start:stop]
        elif kind == "key":
            at = edited.find(b'"', start)
            edited[at:at] = b'"index": 7, "split": "x", "shards": [], '
        else:
            del edited[start:]
    return bytes(edited)


def get(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def put(content: Any, path: tuple[Any, ...], value: Any) -> None:
    get(content, path[:-1])[path[-1]] = value


def texts_like(document: Any) -> st.SearchStrategy[bytes]:
    """Any bytes, any JSON, and damaged forms of `document`."""
    text = json.dumps(document).encode()
    return st.one_of(
        st.binary(max_size=100),
        JSON.map(lambda value: json.dumps(value).encode()),
        edited_values(document).map(lambda value: json.dumps(value).encode()),
        edited_bytes(text),
    )


# Receipts

RECEIPT = Receipt(
    engine="hf 0.23.1",
    rows_checked=1,
    fingerprint="f" * 32,
    split="train",
    index=0,
    shards=(make_shard(ledger=Ledger(rows_in=7, rows_used=5, rejected={"text_null": 2}, tokens_cut=3)),),
    first_rejected=(RejectedRow(row=3, reason="text_null"),),
)
RECEIPT_DOCUMENT = json.loads(receipts.dump(RECEIPT))


@pytest.mark.slow
@FUZZ
@given(texts_like(RECEIPT_DOCUMENT))
@example(receipts.dump(RECEIPT))
@example(DEEP)
@example(MANY_DIGITS)
def test_any_receipt_is_refused_or_fit_for_a_manifest(text: bytes) -> None:
    receipt = refused_or(lambda: receipts.parse(text, path="receipt.json"))
    if receipt is None:
        return
    assert receipts.parse(receipts.dump(receipt), path="") == receipt
    # Names and lengths are compared with the task's own where receipts are looked for.
    shards = tuple(
        dataclasses.replace(shard, name=f"{at}-{make_shard().name}", length=None, task=None)
        for at, shard in enumerate(receipt.shards)
    )
    committed = make(layout={"name": "concat", "max_length": 8}, splits={"train": Split(shards=shards)})
    assert manifest.parse(manifest.dump(committed)) == committed


# Plans

RANGES = ((0, 40), (60, 90))
PLAN = SplitPlan(
    split="train",
    source_split="train",
    ranges=RANGES,
    predicted_bytes=900,
    rows=(30, 30, 10),
    spans=np.array([(0, 10), (70, 90), (10, 40), (60, 70)]),
)
GROUPS = Groups(
    files=(StoredFile(path="a.parquet", size=9), StoredFile(path="b.parquet", size=5, ingested=True)),
    num_rows=np.array([50, 50]),
    file=np.array([0, 1], np.int32),
    at=np.zeros(2, np.int64),
    source_rows=np.array([50, 50]),
    num_bytes=np.array([500, 500]),
    stored_bytes=np.array([500, 500]),
)


def job_in(folder: Path) -> Any:
    """As much of a job as its plan takes, with the file that says that it is there."""
    job = SimpleNamespace(
        root=str(folder),
        splits={"train": SimpleNamespace(ranges=RANGES, source_split="train", tasks_before=0)},
        work_path=lambda *parts: str(folder.joinpath(".prep", "f", *parts)),
    )
    storage.write_bytes(job.work_path(reservation.JOB_FILE), b"{}")
    return job


def plan_file(folder: Path) -> Path:
    """The file of the plan."""
    job = job_in(folder)
    plan_files.write(job, PLAN, GROUPS)
    return Path(job.work_path("train", "plan.parquet"))


@functools.cache
def plan_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return plan_file(Path(folder)).read_bytes()


def plan_with(text: bytes) -> bytes:
    """The same pieces with other metadata."""
    sink = pa.BufferOutputStream()
    table = pq.read_table(pa.BufferReader(plan_bytes()))
    pq.write_table(table.replace_schema_metadata({"plan": text}), sink)
    return bytes(sink.getvalue())


@FUZZ
@given(texts_like(json.loads(pq.read_schema(pa.BufferReader(plan_bytes())).metadata[b"plan"])).map(plan_with))
@example(plan_with(DEEP))
@example(plan_with(MANY_DIGITS))
def test_any_plan_is_refused_or_has_the_rows_of_its_shards(tmp_path: Path, content: bytes) -> None:
    require_refused_or_whole(tmp_path, content)


@FUZZ
@given(st.binary(max_size=100) | edited_bytes(plan_bytes()))
@example(plan_bytes())
@example(b"")
def test_any_damaged_plan_is_refused_or_has_the_rows_of_its_shards(tmp_path: Path, content: bytes) -> None:
    require_refused_or_whole(tmp_path, content)


def require_refused_or_whole(folder: Path, content: bytes) -> None:
    job = job_in(folder)
    storage.write_bytes(job.work_path("train", "plan.parquet"), content)
    plan_files._content.cache_clear()

    if (plan := refused_or(lambda: plan_files.require(job, "train"))) is None:
        return
    assert sum(plan.rows) == 70
    for task in plan.tasks():
        if found := refused_or(functools.partial(plan_files.task_of, job, plan_files.key_of(task))):
            assert (found.num_rows, found.located.num_rows) == (task.num_rows, task.num_rows)
            assert max(found.located.file) < len(found.located.files)


# The other files of the work folder

JOB_DOCUMENT = {"name": "tiny", "seed": 0, "source": {"files": [{"name": "a", "bytes": 1}]}}
PLACE_DOCUMENT = {"dataset": "data", "config": None, "revision": None}


@pytest.mark.slow
@FUZZ
@given(job=texts_like(JOB_DOCUMENT), committed=st.none() | texts_like(json.loads(manifest.dump(make()))))
@example(job=DEEP, committed=DEEP)
def test_clearing_a_folder_leaves_what_is_not_ours_whatever_its_own_files_say(
    tmp_path_factory: pytest.TempPathFactory, job: bytes, committed: bytes | None
) -> None:
    root = tmp_path_factory.mktemp("out")
    work = root / ".prep" / ("f" * 32)
    work.mkdir(parents=True)
    (work / "job.json").write_bytes(job)
    (root / "mine.tfrecord").write_bytes(b"mine")
    if committed is not None:
        (root / manifest.FILE_NAME).write_bytes(committed)
    refused_or(lambda: reservation.clear(str(root)))
    assert (root / "mine.tfrecord").read_bytes() == b"mine"


@FUZZ
@given(texts_like(PLACE_DOCUMENT))
@example(json.dumps(PLACE_DOCUMENT).encode())
@example(DEEP)
def test_any_note_of_the_source_is_refused_or_names_a_dataset(tmp_path: Path, text: bytes) -> None:
    work = tmp_path / ".prep" / "f"
    work.mkdir(parents=True, exist_ok=True)
    (work / "source.json").write_bytes(text)
    place = refused_or(lambda: source_record.read(str(tmp_path), "f"))
    assert place is None or isinstance(place["dataset"], str)


# Shards and records

MESSAGES = [b"first", b"", b"the third, of more than sixteen bytes", bytes(300)]


def payloads_of(messages: list[bytes]) -> Payloads:
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int64)
    return Payloads(np.frombuffer(b"".join(messages), np.uint8), offsets)


def read(
    data: bytes,
    *,
    compression: records.Compression,
    batch_bytes: int = 8 << 20,
    most_record_bytes: int = records.MOST_RECORD_BYTES,
) -> list[bytes]:
    batches = records.read_payloads(
        io.BytesIO(data),
        compression=compression,
        place="shard",
        batch_bytes=batch_bytes,
        most_record_bytes=most_record_bytes,
    )
    return [message for batch in batches for message in batch]


@FUZZ
@given(
    data=edited_bytes(gzip.compress(records.frame(payloads_of(MESSAGES)).tobytes(), mtime=0)), batch=st.integers(1, 400)
)
def test_a_damaged_gzip_shard_is_refused_or_holds_the_same_records(data: bytes, batch: int) -> None:
    """The same: gzip's header has fields that no checksum covers."""
    found = refused_or(lambda: read(data, compression="gzip", batch_bytes=batch))
    assert found is None or found == MESSAGES


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("size", [2**30, 2**62, 2**64 - 1])
def test_no_room_is_made_for_a_record_that_only_says_it_is_large(compression: records.Compression, size: int) -> None:
    header = struct.pack("<Q", size)
    data = header + struct.pack("<I", records.masked_crc32c(header)) + bytes(1_000)
    stored = gzip.compress(data) if compression == "gzip" else data

    def cut_off() -> None:
        with pytest.raises(CorruptRecordError, match=r"cut off|expected at most"):
            read(stored, compression=compression, batch_bytes=4_096)

    cut_off()  # what the first call compiles and imports is not counted
    assert peak_bytes_of(cut_off) < 1_000_000


def test_a_record_is_no_larger_than_its_schema_allows_however_small_it_is_packed() -> None:
    """Its frame is sound, so that nothing else would stop it before all of it is unpacked."""
    schema = Schema((feature("a", shape=(8,)),))
    message = bytes(30_000_000)
    stored = gzip.compress(records.frame(payloads_of([message])).tobytes(), 1)
    assert len(stored) < 200_000

    def refused() -> None:
        with pytest.raises(CorruptRecordError, match="record 0 at byte 0: 30000000 bytes, expected at most 145"):
            read(stored, compression="gzip", batch_bytes=9_999, most_record_bytes=schema.most_record_bytes)

    refused()
    assert peak_bytes_of(refused) < 1_000_000


@pytest.mark.parametrize("name", ["", "x" * 127])
@pytest.mark.parametrize("value", [0, 2**31, -1, -(2**63), 2**63 - 1])
def test_every_record_of_a_schema_is_as_small_as_it_says(name: str, value: int) -> None:
    schema = Schema((feature(f"a{name}", shape=(700,)), feature("b"), feature("c", "float32", (3,))))
    columns = {
        f"a{name}": np.full((1, 700), value),
        "b": np.full(1, value),
        "c": np.full((1, 3), np.nan, np.float32),
    }
    (message,) = examples.encode(columns, schema)
    assert len(message) <= schema.most_record_bytes


@pytest.mark.slow
def test_gzip_data_that_unpacks_to_much_is_refused_at_its_first_record() -> None:
    bomb = gzip.compress(bytes(200_000_000))
    assert len(bomb) < 250_000

    def refused() -> None:
        with pytest.raises(CorruptRecordError, match="record 0 at byte 0: size crc"):
            read(bomb, compression="gzip", batch_bytes=100_000)

    refused()
    assert peak_bytes_of(refused) < 2_000_000


def feature(name: str, dtype: Any = "int64", shape: tuple[int, ...] = ()) -> Feature:
    return Feature(name=name, dtype=dtype, shape=shape, role="column")


SCHEMAS = [
    Schema(features)
    for features in [
        (feature("a"),),
        (feature("a", shape=(3,)),),
        (feature("a", "float32"),),
        (feature("a"), feature("b", "float32", (2,))),
        (feature("b", "float32", (2,)), feature("a")),
        (feature("ab"), feature("a")),
        (feature("a", shape=(2**23,)), feature("b")),
        (feature("a", shape=(2**10, 2**13)),),
    ]
]


@st.composite
def encoded(draw: st.DrawFn) -> list[bytes]:
    """Records of one of the smaller schemas, and perhaps damage in one of them."""
    schema = draw(st.sampled_from(SCHEMAS[:6]))
    columns = {
        each.name: np.array(
            draw(st.lists(st.integers(-(2**31), 2**31), min_size=2 * each.num_values, max_size=2 * each.num_values))
        )
        .astype(each.dtype)
        .reshape(2, *each.shape)
        for each in schema.features
    }
    messages = list(examples.encode(columns, schema))
    if draw(st.booleans()):
        messages[1] = draw(edited_bytes(messages[1]))
    return messages


@FUZZ
@given(messages=encoded(), schema=st.sampled_from(SCHEMAS))
def test_records_of_another_schema_are_refused_or_are_of_this_one_too(messages: list[bytes], schema: Schema) -> None:
    found = refused_or(lambda: examples.decode(payloads_of(messages), schema, place="shard"))
    assert found is None or list(examples.encode(found, schema)) == messages


def peak_bytes_of(run: Callable[[], object]) -> int:
    """The most that `run` held of Python's and NumPy's memory at a time."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
