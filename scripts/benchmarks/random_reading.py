"""Random access: our rows against ArrayRecord, both through Grain; sequential batches; and opening many shards.

ArrayRecord holds the rows in the form that is best for it: the bytes of an int32 array each, with nothing to parse, in
groups of one record. Grain reads both a batch at a time, which is faster for both than row by row.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from scripts.benchmarks import figures, measure, preparing
from scripts.benchmarks.figures import Figure, median, number, spread
from tfrecord_io import manifest as manifests
from tfrecord_io import records
from tfrecord_io.format import record_index
from tfrecord_io.format.ledger import Ledger, Shard, Split
from tfrecord_io.manifest import Manifest, TokenizerFacts
from tfrecord_io.schema import Feature, Schema

__all__ = ["report", "write_dataset"]

_VOCAB_SIZE = 30_000
_WHAT = {
    "ours_1": "random batches, 1 thread on 1 core: ours",
    "array_record_1": "random batches, 1 thread on 1 core: ArrayRecord",
    "ours_8": "random batches, 8 threads: ours",
    "array_record_8": "random batches, 8 threads: ArrayRecord",
    "ours_rows": "random rows one by one, without Grain: ours",
    "array_record_rows": "random rows one by one, without Grain: ArrayRecord",
    "ours_sequential": "batches in order, 1 core: ours",
    "reader_sequential": "batches in order, 1 core: our tf.data reader",
}
# (name, ours, theirs, at least)
_BARS = (
    ("random rows over ArrayRecord, 1 thread", "ours_1", "array_record_1", 1.5),
    ("random rows over ArrayRecord, 8 threads", "ours_8", "array_record_8", 1.5),
    ("rows in order over the tf.data reader", "ours_sequential", "reader_sequential", 1.0),
)


def report(settings: preparing.Settings) -> tuple[str, list[Figure]]:
    """The table of this section, and its figures with a bar."""
    root = _made(settings.workdir / "random-rows", num_shards=10, rows=10_000, length=512)
    many = _made(settings.workdir / "random-many", num_shards=10_000, rows=2, length=8)
    measure.warm_pages(root)
    contenders = [name for name in _WHAT if "array" not in name and name not in ("ours_1", "ours_8")]
    if importlib.util.find_spec("grain"):
        contenders = list(_WHAT)
    speeds: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(settings.reader_rounds):
        for contender in contenders:
            cores = 1 if contender.endswith(("sequential", "_1")) else 0
            speeds[contender].append(
                _result(contender, root, settings.reader_seconds / 2, cores=cores)["rows_per_second"]
            )
    rows = [[_WHAT[contender], spread(speeds[contender])] for contender in contenders]
    found = [
        Figure(name=name, measured=median(speeds[ours]) / median(speeds[theirs]), at_least=at_least, unit="x")
        for name, ours, theirs, at_least in _BARS
        if ours in speeds and theirs in speeds
    ]
    opened = [_result("open", many, 0, cores=0) for _ in range(settings.reader_rounds)]
    seconds, megabytes = (median(each[name] for each in opened) for name in ("seconds", "megabytes"))
    rows.append(["opening 10,000 shards", f"{number(seconds)} s, {number(megabytes)} MB"])
    found += [
        Figure(name="opening 10,000 shards", measured=seconds, at_most=1.0, unit=" s"),
        Figure(name="memory with 10,000 shards open", measured=megabytes, at_most=200, unit=" MB"),
    ]
    missing = "" if "ours_1" in speeds else "\n\nWithout ArrayRecord: Grain is not installed (pip install grain)."
    return figures.table(["what", "rows/s"], rows) + missing, found


def _result(contender: str, root: pathlib.Path, seconds: float, *, cores: int) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.benchmarks.random_worker", contender, str(root), str(seconds)]
    run = measure.run(command, env={"TF_CPP_MIN_LOG_LEVEL": "3"}, cores=cores)
    print(f"  random access, {contender}: {run.result}", file=sys.stderr, flush=True)
    return {name: float(value) for name, value in run.result.items()}


def _made(folder: pathlib.Path, *, num_shards: int, rows: int, length: int) -> pathlib.Path:
    """The dataset; made once, then found again."""
    if not (folder / manifests.FILE_NAME).exists():
        write_dataset(folder, num_shards=num_shards, rows=rows, length=length)
    return folder


def write_dataset(
    folder: pathlib.Path,
    *,
    num_shards: int,
    rows: int,
    length: int,
    ids: Callable[[int], np.ndarray] | None = None,
) -> None:
    """A dataset of `concat` rows: `rows` of `length` in each shard, of random tokens, or `ids` of a shard's number."""
    schema = Schema(
        (
            Feature(name="input_ids", dtype="int64", shape=(length,), role="token_ids"),
            Feature(name="num_tokens", dtype="int64", shape=(), role="num_tokens"),
        )
    )
    (folder / record_index.FOLDER).mkdir(parents=True, exist_ok=True)
    shards = []
    for index, columns in enumerate(_columns(num_shards, rows=rows, length=length, ids=ids)):
        name = manifests.shard_name(name="random", split="train", index=index, count=num_shards)
        shards.append(_write_shard(folder, name, columns, schema))
    (folder / manifests.FILE_NAME).write_bytes(manifests.dump(_manifest(schema, tuple(shards), length=length)))


def _columns(
    num_shards: int, *, rows: int, length: int, ids: Callable[[int], np.ndarray] | None
) -> Iterator[Mapping[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for shard in range(num_shards):
        ids_NL = rng.integers(0, _VOCAB_SIZE, (rows, length), np.int32) if ids is None else ids(shard)
        yield {"input_ids": ids_NL, "num_tokens": np.full(rows, length, np.int32)}


def _write_shard(folder: pathlib.Path, name: str, columns: Mapping[str, np.ndarray], schema: Schema) -> Shard:
    frames, index = records.encode_framed(columns, schema), record_index.IndexBuilder()
    content = frames.data.tobytes()
    index.add(np.diff(frames.offsets))
    (folder / name).write_bytes(content)
    (folder / record_index.file_name(name)).write_bytes(index.dump())
    return Shard(
        name=name,
        num_bytes=len(content),
        num_examples=len(frames),
        num_tokens=int(columns["num_tokens"].sum()),
        sha256=hashlib.sha256(content).hexdigest(),
        ledger=Ledger(rows_in=len(frames), rows_used=len(frames)),
    )


def _manifest(schema: Schema, shards: tuple[Shard, ...], *, length: int) -> Manifest:
    return Manifest(
        name="random",
        fingerprint="0" * 64,
        schema=schema,
        layout={"name": "concat", "max_length": length},
        tokenizer=TokenizerFacts(
            name="none",
            kind="none",
            vocab_size=_VOCAB_SIZE,
            content_sha256="0" * 64,
            special_ids=(),
            padding_side="right",
            pad_id=0,
        ),
        splits={"train": Split(shards=shards)},
        index_stride=record_index.STRIDE,
    )
