"""For any bytes on the disk, a reader returns a sound object or raises our error: no other exception, no hang, no
allocation for an unverified size, and no change outside the dataset.

    documents    the JSON files of a stranger's finished dataset with one field changed: 500 changes of each
                 dataset for the parsers, a few for each command
    plans        changed metadata, damaged bytes
    binaries     wrong sizes, Examples read with another schema

A change is a field (of lists the first or the last entry) and a value for it, drawn with a new seed each time. A
failure's message has the seed; put it into SEED to reproduce. Record indices, shards, and Examples with their own
schema are fuzzed in their own tests.
"""

import copy
import dataclasses
import functools
import gzip
import io
import itertools
import json
import random
import shutil
import struct
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.prepare import storage
from pipelines.prepare.dataset import plan_files, receipts, reservation, source_record
from tests import building
from tests.building import REVIEWS, built
from tests.support import frames, limits
from tests.support.manifests import make
from tests.support.plans import GROUPS, SHARDS, job_in, plan_of
from tfrecord_io import examples, manifest, records
from tfrecord_io.errors import CorruptRecordError, FormatError, PrepError
from tfrecord_io.examples import Payloads
from tfrecord_io.format import json_fields
from tfrecord_io.format.json_fields import WRONG
from tfrecord_io.manifest import Split
from tfrecord_io.schema import Feature, Schema

Parsed = TypeVar("Parsed")

SEED = random.randrange(10**9)
GONE = object()
DEEP = json.loads("[" * 300 + "]" * 300)
VALUES = [
    *(None, True, -1, 0, 3, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf"), GONE, "", "x", "../../x", "/etc/x"),
    *("x" * 100_000, "\ud800", "a\0b", [], [[]], [None], {}, {"a": 1}, DEEP),
]
BUILDS: dict[str, dict[str, Any]] = {
    "pad": {"label_column": "label"},
    "pack": {"layout": "pack"},
    "buckets": {"max_length": None, "bucket_lengths": "16,32", "label_column": "label"},
}
PARSED = 500
COMMANDS = {"inspect": 20, "trace": 10, "repair": 5}


class Change(NamedTuple):
    file: str
    place: tuple[Any, ...]
    value: Any

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else f"{self.value!r:.60}" if self.value is not DEEP else "deep"
        return f"seed {SEED}: {self.file} {'.'.join(map(str, self.place))} = {value}"

    def applied(self, document: Any) -> bytes:
        """The file with the change; a manifest without its digest, which whoever changes it can make right."""
        changed = copy.deepcopy(document)
        if self.file == "manifest.json" and self.place != ("sha256",):
            del changed["sha256"]
        inside = functools.reduce(lambda inner, key: inner[key], self.place[:-1], changed)
        if self.value is GONE:
            del inside[self.place[-1]]
        else:
            inside[self.place[-1]] = self.value
        return json.dumps(changed).encode()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    copies = {}
    for name, changes in BUILDS.items():
        root = tmp_path_factory.mktemp(name) / "here" / "out"
        shutil.copytree(built(REVIEWS, **changes), root)
        copies[name] = root
    return copies


def files_of(root: Path) -> list[str]:
    names = [str(path.relative_to(root)) for path in sorted(root.rglob("*.json")) if path.parent.name != "tokenizer"]
    return [name for name in names if "receipt" not in name or "-00000-" in name]


def changes_of(root: Path, file: str) -> Iterator[Change]:
    document = json.loads((root / file).read_bytes())
    for place, value in itertools.product(places(document), VALUES):
        yield Change(file, place, value)


def places(content: Any) -> Iterator[tuple[Any, ...]]:
    keys = list(content) if isinstance(content, dict) else []
    if isinstance(content, list) and content:
        keys = sorted({0, len(content) - 1})
    for key in keys:
        yield (key,)
        yield from ((key, *rest) for rest in places(content[key]))


def refused_or(parse: Callable[[], Parsed], about: object = "") -> Parsed | None:
    """What `parse` gives, or None where it raises an error of ours, with a cause and a remedy."""
    try:
        return parse()
    except PrepError as error:
        refused = error
    except Exception as error:
        raise AssertionError(about) from error
    assert refused.cause
    assert refused.remedy
    return None


def receipt_of(text: bytes) -> object:
    """A receipt. Fails if it is one that no manifest can take."""
    try:
        receipt = receipts.parse(text)
    except WRONG as error:
        raise FormatError(f"{error!r}", remedy="make the shard again") from error
    assert receipts.parse(receipts.dump(receipt)) == receipt
    # Names and lengths are compared with the task's own where receipts are looked for.
    shards = tuple(
        dataclasses.replace(shard, name=f"n-{at}.tfrecord", length=None, task=None)
        for at, shard in enumerate(receipt.shards)
    )
    committed = make(layout={"name": "concat", "max_length": 8}, splits={"train": Split(shards=shards)})
    assert shards
    assert manifest.parse(manifest.dump(committed)) == committed
    return receipt


def source_of(text: bytes, folder: Path) -> object:
    _write(folder / ".prep" / "f" / "source.json", text)
    place = source_record.read(str(folder), "f")
    assert isinstance(place["dataset"], str)
    return place


def cleared(text: bytes, folder: Path) -> object:
    """Clear a folder with this job.json. Fail if that deletes a stranger's file."""
    _write(folder / ".prep" / ("f" * 32) / "job.json", text)
    _write(folder / "mine.tfrecord", b"mine")
    reservation.clear(str(folder))
    assert (folder / "mine.tfrecord").read_bytes() == b"mine"
    return folder


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def parser_of(file: str, folder: Path) -> Callable[[bytes], object]:
    parsers: dict[str, Callable[[bytes], object]] = {
        "manifest.json": lambda text: manifest.parse(text, place=file),
        "receipt": receipt_of,
        "source.json": lambda text: source_of(text, folder),
        "job.json": lambda text: cleared(text, folder),
    }
    return parsers[Path(file).name.partition("-")[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_every_parser_takes_a_file_or_refuses_it(roots: dict[str, Path], name: str, tmp_path: Path) -> None:
    root, refused = roots[name], 0
    # The files for TFDS are never parsed, only compared with the manifest.
    documents = {
        file: json.loads((root / file).read_bytes())
        for file in files_of(root)
        if Path(file).name not in ("dataset_info.json", "features.json", "plan.json")  # a plan is damaged below
    }
    every = [change for file in documents for change in changes_of(root, file)]
    for change in random.Random(f"{SEED} {name}").sample(every, PARSED):
        content = change.applied(documents[change.file])
        refused += refused_or(functools.partial(parser_of(change.file, tmp_path), content), change) is None
    assert refused > PARSED / 4


@pytest.mark.parametrize("file", ["manifest.json", "receipt-0", "source.json", "job.json"])
@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"index": ' + b"9" * 10_000 + b"}"])
def test_a_file_that_is_none_of_ours_is_refused(file: str, text: bytes, tmp_path: Path) -> None:
    parsed = refused_or(functools.partial(parser_of(file, tmp_path), text))
    assert parsed is None or file == "job.json"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_does_its_work_or_refuses_to(roots: dict[str, Path], command: str) -> None:
    draw = random.Random(f"{SEED} {command}")
    every = [(root, change) for root in roots.values() for file in files_of(root) for change in changes_of(root, file)]
    for root, change in draw.sample(every, COMMANDS[command]):
        attempt(command, root, change)


def attempt(command: str, root: Path, change: Change) -> None:
    around = root.parents[1]
    (around / "x").write_bytes(b"outside")
    kept = shutil.copytree(root, around / "kept", dirs_exist_ok=True)
    (root / change.file).write_bytes(change.applied(json.loads((root / change.file).read_bytes())))
    outside = {name: content for name, content in building.files(around).items() if not name.startswith("here/out/")}
    arguments: tuple[object, ...] = (command, root)
    if command == "trace":
        arguments = ("trace", root, "--split=train", "--shard=0", "--record=0")
    elif command == "repair":
        next(root.glob("*-train-*")).unlink()
        (root / "tokenizer" / "tokenizer.json").write_bytes(b"{}")
        arguments = ("verify", root, "--repair")
    try:
        outcome = building.command(*arguments)
        if outcome.status:
            assert outcome.error
    except Exception as error:
        raise AssertionError(change) from error
    finally:
        shutil.rmtree(root)
        kept.rename(root)
    after = {name: content for name, content in building.files(around).items() if not name.startswith("here/out/")}
    assert after == {name: content for name, content in outside.items() if not name.startswith("kept/")}, change


@pytest.mark.slow
def test_a_dataset_that_names_another_one_changes_nothing_there(roots: dict[str, Path], tmp_path: Path) -> None:
    """Its fingerprint points outside its folder, to the tokenizer and the receipts of a neighbouring dataset."""
    root, other = (Path(shutil.copytree(roots["pad"], tmp_path / name)) for name in ("out", "other"))
    (work,) = (other / ".prep").iterdir()
    (work / "tokenizer" / "tokenizer.json").write_bytes(b"another one")
    for receipt in work.glob("train/receipt-*"):
        receipt.unlink()
    before = building.files(other)
    change = Change("manifest.json", ("fingerprint",), f"../../other/.prep/{work.name}")
    (root / "manifest.json").write_bytes(change.applied(json.loads((root / "manifest.json").read_bytes())))
    next(root.glob("*-train-*")).unlink()
    assert "1 to 128 hex digits" in building.command("verify", root, "--repair").error[0]
    assert building.files(other) == before


def test_numbers_that_are_none_and_too_much_depth_are_refused() -> None:
    numbers = ("1e400", "-1e999", "NaN", "-Infinity")
    for text in (*numbers, "[" * 100_000, "[" * 60 + "]" * 60, '{"a":' * 60 + "1" + "}" * 60):
        with pytest.raises(ValueError, match=r"not a finite number|deep|Expecting"):
            json_fields.load(text)
    assert json_fields.load("[" * 50 + "]" * 50)


# Damage to bytes

FUZZ = settings(
    max_examples=100,
    deadline=timedelta(seconds=limits.ANSWER),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


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


# Plans


@functools.cache
def plan_bytes(name: str = "plan-00000.parquet") -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        job = job_in(Path(folder))
        plan_files.write(job, plan_of(SHARDS, rows=100), GROUPS)
        return Path(job.work_path("train", name)).read_bytes()


def test_any_metadata_of_a_plan_is_refused_or_has_the_rows_of_its_shards(tmp_path: Path) -> None:
    document = json.loads(plan_bytes("plan.json"))
    every = [Change("plan", place, value) for place, value in itertools.product(places(document), VALUES)]
    for change in random.Random(f"{SEED} plan").sample(every, 100):
        require_refused_or_whole(tmp_path, change.applied(document), name="plan.json", about=change)


@pytest.mark.slow
@FUZZ
@given(st.binary(max_size=100) | edited_bytes(plan_bytes()))
@example(plan_bytes())
@example(b"")
def test_any_damaged_plan_is_refused_or_has_the_rows_of_its_shards(tmp_path: Path, content: bytes) -> None:
    require_refused_or_whole(tmp_path, content)


def require_refused_or_whole(
    folder: Path, content: bytes, *, name: str = "plan-00000.parquet", about: object = ""
) -> None:
    job = job_in(folder)
    for file in ("plan.json", "plan-00000.parquet"):
        storage.write_bytes(job.work_path("train", file), content if file == name else plan_bytes(file))
    plan_files._open.cache_clear()
    plan_files._read_group.cache_clear()

    if (plan := refused_or(lambda: plan_files.read(job, "train"), about)) is None:
        return
    assert sum(plan.rows) == 100
    for task in plan.tasks():
        if task_read := refused_or(functools.partial(plan_files.task_of, job, plan_files.key_of(task)), about):
            assert (task_read.num_rows, task_read.located.num_rows) == (task.num_rows, task.num_rows)
            assert max(task_read.located.file) < len(task_read.located.files)


# Shards and records


def payloads_of(messages: list[bytes]) -> Payloads:
    offsets = np.cumsum([0, *map(len, messages)], dtype=np.int64)
    return Payloads(np.frombuffer(b"".join(messages), np.uint8), offsets)


def read(data: bytes, *, compression: records.Compression = "gzip", **limits: int) -> None:
    for _ in records.read_payloads(io.BytesIO(data), compression=compression, place="shard", **limits):
        pass


def require_refused_in_a_megabyte(words: str, data: bytes, **options: Any) -> None:
    def refused() -> int:
        tracemalloc.start()
        try:
            with pytest.raises(CorruptRecordError, match=words):
                read(data, **options)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    refused()  # excludes imports and compilation in the first call
    assert refused() < 1_000_000


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_no_room_is_made_for_a_record_that_only_says_it_is_large(compression: records.Compression) -> None:
    header = struct.pack("<Q", 2**30)
    data = header + struct.pack("<I", records.masked_crc32c(header)) + bytes(1_000)
    stored = gzip.compress(data) if compression == "gzip" else data
    require_refused_in_a_megabyte("cut off|expected at most", stored, compression=compression, batch_bytes=4_096)


def test_a_record_is_no_larger_than_its_schema_allows_however_small_it_is_packed() -> None:
    """Its frame is valid, so only the size limit stops it before it is unpacked completely."""
    schema = Schema((feature("a", shape=(8,)),))
    message = bytes(30_000_000)
    stored = gzip.compress(frames.framed([message]), 1)
    assert len(stored) < 200_000
    words = "record 0 at byte 0: 30,000,000 bytes, expected at most 145"
    require_refused_in_a_megabyte(words, stored, batch_bytes=9_999, most_record_bytes=schema.most_record_bytes)


@pytest.mark.parametrize("name", ["", "x" * 127])
@pytest.mark.parametrize("value", [0, 2**31, -1, -(2**63), 2**63 - 1])
def test_every_record_of_a_schema_is_as_small_as_it_says(name: str, value: int) -> None:
    schema = Schema((feature(f"a{name}", shape=(700,)), feature("b"), feature("c", "float32", (3,))))
    columns = {f"a{name}": np.full((1, 700), value), "b": np.full(1, value), "c": np.full((1, 3), np.nan, np.float32)}
    (message,) = examples.encode(columns, schema)
    assert len(message) <= schema.most_record_bytes


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
    """Return records of one of the smaller schemas, optionally with damage in one of them."""
    schema = draw(st.sampled_from(SCHEMAS[:6]))
    columns = {
        item.name: np.array(
            draw(st.lists(st.integers(-(2**31), 2**31), min_size=2 * item.num_values, max_size=2 * item.num_values))
        )
        .astype(item.dtype)
        .reshape(2, *item.shape)
        for item in schema.features
    }
    messages = list(examples.encode(columns, schema))
    if draw(st.booleans()):
        messages[1] = draw(edited_bytes(messages[1]))
    return messages


@FUZZ
@given(messages=encoded(), schema=st.sampled_from(SCHEMAS))
def test_records_of_another_schema_are_refused_or_are_of_this_one_too(messages: list[bytes], schema: Schema) -> None:
    columns = refused_or(lambda: examples.decode(payloads_of(messages), schema, place="shard"))
    assert columns is None or list(examples.encode(columns, schema)) == messages
