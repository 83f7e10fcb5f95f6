"""Kept strings and bytes: in the records of every layout with one row per example, and back from them in every way."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests import building
from tfrecord_io import objectives, random_access, reader
from tfrecord_io.errors import ManifestError, ReaderError
from tfrecord_io.manifest import FORMAT_VERSION, parse

COUNT = 60
UIDS = ["", "é€😀", *(f"row-{number}" for number in range(2, COUNT))]
BLOBS = [bytes([number, 0, 255]) for number in range(COUNT)]
TEXT = "the film was good and the end was bad"
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]
COLUMNS: dict[str, Any] = {
    "uid": UIDS,
    "blob": BLOBS,
    "text": [f"{TEXT} {number}" for number in range(COUNT)],
    "target": [f"film {number}" for number in range(COUNT)],
    "messages": [CHAT] * COUNT,
    "tokens": [["good", "film"]] * COUNT,
    "tags": [["O", "B"]] * COUNT,
    "question": ["what was good"] * COUNT,
    "answers": [{"text": ["film"], "answer_start": [4]}] * COUNT,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "pad": {},
    "buckets": {"bucket_lengths": "16,32"},
    "windows": {"stride": 2, "max_length": 8},
    "seq2seq": {"layout": "seq2seq", "target_column": "target", "target_length": 8},
    "tokens": {"layout": "tokens", "max_length": 16},
    "qa": {"layout": "qa", "text_column": ("question", "text")},
    "chat": {"layout": "chat", "max_length": 64},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    pq.write_table(pa.table(COLUMNS), folder / "train.parquet", row_group_size=20)
    return folder


def build(source: Path, layout: str = "pad") -> Path:
    tokenizer = building.tokenizer("chats" if layout == "chat" else "reviews")
    return building.built(source, keep_column=("uid", "blob"), name="d", tokenizer=tokenizer, **LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_hold_the_values_of_their_rows(layout: str, source: Path) -> None:
    root = build(source, layout)
    schema = building.read_manifest(root).schema
    assert [(schema[name].dtype, schema[name].shape) for name in ("uid", "blob")] == [("string", ()), ("bytes", ())]
    pairs = set()
    for shard in building.read_manifest(root).splits["train"].shards:
        for record in tf.data.TFRecordDataset(str(root / shard.name)).as_numpy_iterator():
            example = tf.train.Example.FromString(record)
            assert example.SerializeToString(deterministic=True) == record
            values = [example.features.feature[name].bytes_list.value for name in ("uid", "blob")]
            assert [len(value) for value in values] == [1, 1]
            pairs.add((values[0][0].decode(), values[1][0]))
    assert pairs == set(zip(UIDS, BLOBS, strict=True))
    assert building.command("verify", root).status == 0


def test_random_access_gives_text_as_str(source: Path) -> None:
    rows = random_access.open(build(source))["train"]
    assert sorted(row["uid"] for row in rows) == sorted(UIDS)
    several = rows.batch([3, 1, 3])
    assert several["uid"].tolist() == [rows[at]["uid"] for at in (3, 1, 3)]
    assert several["blob"].tolist() == [BLOBS[UIDS.index(uid)] for uid in several["uid"]]
    assert rows.batch([])["uid"].shape == (0,)


@pytest.mark.slow
def test_tf_data_gives_text_only_to_those_who_ask(source: Path) -> None:
    data = reader.open(build(source))
    assert not {"uid", "blob"} & set(data.dataset("train", global_batch_size=8).element_spec)
    batches = data.dataset("train", global_batch_size=32, training=False, keep=("uid", "blob"))
    assert batches.element_spec["uid"] == tf.TensorSpec([32], tf.string)
    columns = [(batch["uid"], batch["blob"], batch["example_weight"]) for batch in batches.as_numpy_iterator()]
    uids, blobs, weights = (np.concatenate(column) for column in zip(*columns, strict=True))
    assert uids[weights == 0].tolist() == [b""] * 4
    expected = sorted((uid.encode(), blob) for uid, blob in zip(UIDS, BLOBS, strict=True))
    assert sorted(zip(uids[weights == 1].tolist(), blobs[weights == 1].tolist(), strict=True)) == expected
    with pytest.raises(ReaderError, match=r"keep is \['input_ids'\].*'uid', 'blob'"):
        data.dataset("train", global_batch_size=8, keep=["input_ids"])


@pytest.mark.slow
def test_an_objective_has_what_is_kept_beside_its_result(source: Path) -> None:
    data = reader.open(build(source))
    options: dict[str, Any] = {"global_batch_size": 32, "training": False}
    plain = next(iter(data.dataset("train", **options, keep=["uid"])))
    learned = data.dataset("train", **options, objective=objectives.causal_lm(), keep=["uid", "input_ids"])
    inputs, _, _, kept = next(iter(learned.map(lambda *element: element)))
    assert sorted(kept) == ["input_ids", "uid"]
    assert "uid" not in inputs
    for name, values in kept.items():
        np.testing.assert_array_equal(values, plain[name])
    with pytest.raises(ReaderError, match=r"keep is \['id'\], expected some of the features .*'uid'"):
        data.dataset("train", **options, objective=objectives.causal_lm(), keep="id")


def test_a_value_that_is_null_or_too_long_rejects_its_row(tmp_path: Path) -> None:
    uids = ["a", None, "x" * (1 << 20), "x" * ((1 << 20) + 1)]
    place = building.source(tmp_path / "d", train=[{"text": "good film", "uid": uid} for uid in uids])
    root = building.built(place, keep_column="uid", max_error_rate=0.9, shard_size="10MB")
    ledger = building.read_manifest(root).splits["train"].ledger
    assert dict(ledger.rejected) == {"column_null": 1, "column_too_long": 1}
    assert sorted(building.read_rows(root, "train")["uid"].tolist()) == ["a", uids[2]]


def test_a_dtype_of_a_later_format_asks_for_a_newer_release(source: Path) -> None:
    content = (build(source) / "manifest.json").read_text()
    later = content.replace(f'_version": "{FORMAT_VERSION}"', '_version": "1.9"').replace('"bytes"', '"image"')
    with pytest.raises(ManifestError, match=r"dtype 'image'.*format 1\.9.*install a release"):
        parse(later)
