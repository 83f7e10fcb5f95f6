"""Every format as other libraries read it: every value of every record, and additional files."""

import dataclasses
import gzip
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.audit.decode import load_tokenizer
from pipelines.prepare.export import example_files, olmo, parquet
from pipelines.prepare.export.export_settings import ExportSettings
from tests import building
from tests.building import REVIEWS, built, read_manifest, read_rows, reviews
from tests.support import frames, seams
from tfrecord_io import examples
from tfrecord_io.schema import Feature, Schema


def exported(root: Path, to: str, output: Path, *arguments: object) -> Path:
    outcome = building.command("export", root, "--to", to, "--output", output, *arguments)
    assert outcome.status == 0, outcome.err
    return output


def documents(root: Path, split: str) -> list[list[int]]:
    return documents_of(read_rows(root, split))


def documents_of(rows: Mapping[str, Any]) -> list[list[int]]:
    if "num_tokens" in rows:
        return [ids[:n].tolist() for ids, n in zip(rows["input_ids"], rows["num_tokens"], strict=True)]
    mask = rows.get("attention_mask", rows.get("segment_ids"))
    assert mask is not None
    return [ids[chosen > 0].tolist() for ids, chosen in zip(rows["input_ids"], mask, strict=True)]


def load(folder: Path, cache: Path) -> datasets.DatasetDict:
    return datasets.load_dataset(str(folder), cache_dir=str(cache))


def _from_folder(folder: Path, cache: Path) -> Any:
    return load(folder, cache)["train"]


def _from_named_files(folder: Path, cache: Path) -> Any:
    return datasets.load_dataset(str(folder), data_files="*train*", split="train", cache_dir=str(cache))


def _from_files(folder: Path, cache: Path) -> Any:
    files = [str(path) for path in sorted(folder.glob("*-train-*"))]
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(cache))


def _from_paths(folder: Path, cache: Path) -> Any:
    files = [str(path) for path in sorted(folder.glob("*-train-*"))]
    return datasets.Dataset.from_parquet(files, cache_dir=str(cache))


def _from_tfds(folder: Path, cache: Path) -> Any:
    del cache
    tfds = pytest.importorskip("tensorflow_datasets")
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    return tfds.as_numpy(tfds.builder_from_directory(str(folder)).as_dataset(split="train", read_config=in_order))


def _from_data_source(folder: Path, cache: Path) -> Any:
    del cache
    return pytest.importorskip("tensorflow_datasets").builder_from_directory(str(folder)).as_data_source("train")


@pytest.mark.slow
class TestTwoExportsOfOneName:
    @pytest.mark.parametrize("second", ["one/out", "two/out"])
    @pytest.mark.parametrize(
        ("to", "read"),
        [
            *(("parquet", read) for read in (_from_folder, _from_named_files, _from_files, _from_paths)),
            ("tfrecord", _from_tfds),
            pytest.param("arrayrecord", _from_data_source, marks=pytest.mark.slow),
        ],
    )
    @pytest.mark.filterwarnings("ignore:label\\(\\) is deprecated:DeprecationWarning")  # TFDS asks protobuf for it
    def test_each_is_read(self, tmp_path: Path, to: str, read: Callable[[Path, Path], Any], second: str) -> None:
        for root, name in ((built(REVIEWS, seed=1), "one/out"), (built(REVIEWS, seed=2), second)):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            rows = read(exported(root, to, tmp_path / name), tmp_path / "cache")
            ids = [[token for token in row["input_ids"] if token] for row in rows]
            assert ids == documents(root, "train"), name


class TestParquet:
    @pytest.mark.parametrize("layout", ["concat", "pack"])
    def test_load_dataset_gives_every_token(self, tmp_path: Path, layout: str) -> None:
        root = built(REVIEWS, layout=layout)
        data = load(exported(root, "parquet", tmp_path / "out"), tmp_path / "cache")
        for split in read_manifest(root).splits:
            assert list(data[split]["input_ids"]) == documents(root, split)

    @pytest.mark.parametrize("layout", ["concat", "pack"])
    def test_documents_are_rows_where_asked_for(self, tmp_path: Path, layout: str) -> None:
        root = built(REVIEWS, layout=layout, max_length=256, split="train")
        out = exported(root, "parquet", tmp_path / "out", "--documents", "--add", "labels")
        data = load(out, tmp_path / "cache")["train"]
        tokenizer = load_tokenizer(str(root))
        lines = (REVIEWS / "train.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line)["text"] for line in lines]
        expected = [[*ids, tokenizer.sep_token_id] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
        assert sorted(data["input_ids"]) == sorted(expected)
        assert data.column_names == ["input_ids", "labels"]

    @pytest.mark.parametrize(
        ("example", "changes"),
        [
            ("chats", {"layout": "chat", "max_length": 128}),
            ("translations", {"layout": "seq2seq", "text_column": "en", "target_column": "de", "target_length": 24}),
            ("tags", {"layout": "tokens"}),
            ("questions", {"layout": "qa", "text_column": ("question", "context"), "max_length": 48}),
        ],
    )
    def test_every_layout_says_what_is_learned(self, tmp_path: Path, example: str, changes: dict[str, object]) -> None:
        tokenizer = building.tokenizer("chats" if example == "chats" else "reviews")
        root = built(building.REPOSITORY / "examples" / example, **{"tokenizer": tokenizer, **changes})
        rows = read_rows(root, "train")
        data = load(exported(root, "parquet", tmp_path / "out"), tmp_path / "cache")["train"]
        assert list(data["input_ids"]) == documents(root, "train")
        if changes["layout"] == "qa":
            assert list(data["start_positions"]) == rows["start_positions"].tolist()
            return
        learned = next(rows[name] for name in ("loss_mask", "target_mask", "tag_mask") if name in rows)
        labels = [label for row in data["labels"] for label in row if label != -100]
        assert len(labels) == learned.sum()

    def test_labels_have_their_names(self, tmp_path: Path) -> None:
        data = load(exported(reviews(), "parquet", tmp_path / "out"), tmp_path / "cache")
        assert data["train"].features["label"].names == ["negative", "positive"]
        assert list(data["train"]["label"]) == read_rows(reviews(), "train")["label"].tolist()
        assert list(data["train"]["input_ids"]) == documents(reviews(), "train")
        assert data["train"].column_names == ["input_ids", "label"]

    def test_the_bytes_do_not_depend_on_the_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seams.put(monkeypatch, export_group_tokens=32 * 7)
        manifest, rows = read_manifest(reviews()), read_rows(reviews(), "train")
        settings = ExportSettings(to="parquet", output="out")

        def content(size: int) -> bytes:
            starts = range(0, len(rows["label"]), size)
            batches = ({name: values[at : at + size] for name, values in rows.items()} for at in starts)
            return bytes(parquet.ParquetWriter(manifest, settings).files(batches)["{}.parquet"])

        assert content(1000) == content(50) == content(3)

    def test_columns_that_axolotl_insists_on_are_written_when_asked_for(self, tmp_path: Path) -> None:
        arguments = ("--add", "attention_mask", "--add", "labels", "--drop", "label", "--split", "train")
        row = load(exported(reviews(), "parquet", tmp_path / "out", *arguments), tmp_path / "cache")["train"][0]
        assert row["labels"] == row["input_ids"]
        assert row["attention_mask"] == [1] * len(row["input_ids"])

    def test_kept_texts_and_bytes_stay_what_they_are(self, tmp_path: Path) -> None:
        rows = {"text": ["a film", "b c"], "id": ["first", "zweite ü"], "raw": [b"\x00\xff", b""]}
        pq.write_table(pa.table(rows), tmp_path / "train.parquet")
        root = built(tmp_path / "train.parquet", keep_column=("id", "raw"), no_shuffle=True)
        data = load(exported(root, "parquet", tmp_path / "out"), tmp_path / "cache")["train"]
        assert (list(data["id"]), list(data["raw"])) == (rows["id"], rows["raw"])
        out = exported(root, "tfrecord", tmp_path / "renamed", "--rename", "id=key", "--drop", "raw")
        (path,) = out.glob("*.tfrecord")
        schema = read_manifest(root).schema
        kept = (feature for feature in schema.features if feature.name != "raw")
        new = Schema(tuple(dataclasses.replace(one, name="key") if one.name == "id" else one for one in kept))
        columns = examples.decode(frames.messages_of(path.read_bytes()), new, place="")
        assert columns["key"].tolist() == rows["id"]


class TestArrayRecord:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:label\\(\\) is deprecated:DeprecationWarning")  # TFDS asks protobuf for it
    def test_tfds_opens_it_as_a_source_with_class_names(self, tmp_path: Path) -> None:
        tfds = pytest.importorskip("tensorflow_datasets")
        builder = tfds.builder_from_directory(str(exported(reviews(), "arrayrecord", tmp_path / "out")))
        source, rows = builder.as_data_source("train"), read_rows(reviews(), "train")
        assert builder.info.features["label"].names == ["negative", "positive"]
        assert len(source) == len(rows["label"])
        for name, values in rows.items():
            np.testing.assert_array_equal(np.stack([row[name] for row in source]), values)

    def test_its_records_are_those_of_the_shards(self, tmp_path: Path) -> None:
        reader = pytest.importorskip("array_record.python.array_record_module").ArrayRecordReader
        out = exported(reviews(), "arrayrecord", tmp_path / "out")
        for shard in reviews().glob("*.tfrecord"):
            opened = reader(str(out / f"{shard.stem}.array_record"))
            payloads = frames.messages_of(shard.read_bytes())
            assert opened.read(0, len(payloads)) == list(payloads)
            assert "group_size:1," in opened.writer_options_string()


class TestMegatron:
    def read(self, stem: Path) -> list[list[int]]:
        """The documents of a .bin and .idx, read as `indexed_dataset.py` reads them."""
        index, data = stem.with_suffix(".idx").read_bytes(), stem.with_suffix(".bin").read_bytes()
        magic, version, code, sequences, ends = struct.unpack_from("<9sQBQQ", index)
        assert (magic, version, ends) == (b"MMIDIDX\0\0", 1, sequences + 1)
        dtype = np.dtype({4: np.int32, 8: np.uint16}[code])
        lengths = np.frombuffer(index, np.int32, sequences, offset=34)
        begins = np.frombuffer(index, np.int64, sequences, offset=34 + 4 * sequences)
        documents = np.frombuffer(index, np.int64, ends, offset=34 + 12 * sequences)
        assert len(index) == 34 + 12 * sequences + 8 * ends
        assert documents.tolist() == list(range(ends))
        return [np.frombuffer(data, dtype, n, offset=at).tolist() for n, at in zip(lengths, begins, strict=True)]

    def all(self, root: Path, out: Path, split: str) -> list[list[int]]:
        shards = read_manifest(root).splits[split].shards
        return [document for shard in shards for document in self.read(out / shard.name.removesuffix(".tfrecord"))]

    def test_rows_are_documents(self, tmp_path: Path) -> None:
        out = exported(reviews(), "megatron", tmp_path / "out", "--drop", "label")
        assert self.all(reviews(), out, "train") == documents(reviews(), "train")

    def test_joined_documents_are_cut_behind_their_eos(self, tmp_path: Path) -> None:
        root = built(REVIEWS, layout="concat")
        out = exported(root, "megatron", tmp_path / "out")
        facts, packed = read_manifest(root), built(REVIEWS, layout="pack", max_length=256)
        end = facts.tokenizer.sep_id if facts.tokenizer.eos_id is None else facts.tokenizer.eos_id
        assert end is not None
        texts = self.all(root, out, "train")
        assert all(document.count(end) == 1 and document[-1] == end for document in texts)
        whole = self.all(packed, exported(packed, "megatron", tmp_path / "packed"), "train")
        assert sorted(texts) == sorted(whole), "the same documents as segments of rows that cut none"


def packed(layout: str) -> Path:
    if layout == "pack":
        return built(REVIEWS, layout="pack")
    options = {"layout": "chat", "pack_rows": True, "max_length": 128, "tokenizer": building.tokenizer("chats")}
    return built(building.REPOSITORY / "examples" / "chats", shard_size="4kB", **options)


def segments(root: Path) -> list[list[tuple[list[int], list[int]]]]:
    """The documents of each packed row: ids, and 1 for each learned token."""
    rows = read_rows(root, "train")
    learned = rows.get("loss_mask", np.ones_like(rows["input_ids"]))
    return [
        [(ids[places == at].tolist(), mask[places == at].tolist()) for at in range(1, places.max() + 1)]
        for ids, places, mask in zip(rows["input_ids"], rows["segment_ids"], learned, strict=True)
    ]


class TestMegatronBridge:
    @pytest.mark.parametrize("layout", ["chat", "pack"])
    def test_each_row_has_its_documents_and_for_each_token_whether_the_next_is_learned(
        self, tmp_path: Path, layout: str
    ) -> None:
        out = exported(packed(layout), "megatron-bridge", tmp_path / "out")
        files = [pq.read_table(path) for path in sorted(out.glob("*-train-*.idx.parquet"))]
        table, expected = pa.concat_tables(files), segments(packed(layout))
        lists = {name: pa.list_(kind) for name, kind in (("input_ids", pa.int32()), ("loss_mask", pa.int8()))}
        assert {name: table.schema.field(name).type for name in lists} == lists
        assert table["input_ids"].to_pylist() == [list(chain.from_iterable(ids for ids, _ in row)) for row in expected]
        assert table["loss_mask"].to_pylist() == [
            [learned for _, mask in row for learned in (*mask[1:], 0)] for row in expected
        ]
        lengths = [[len(ids) for ids, _ in row] for row in expected]
        assert table["seq_start_id"].to_pylist() == [np.cumsum([0, *row[:-1]]).tolist() for row in lengths]


class TestOlmo:
    @pytest.mark.parametrize("layout", ["chat", "pack"])
    def test_documents_have_ids_and_masks_unless_every_token_is_learned(self, tmp_path: Path, layout: str) -> None:
        out, read = exported(packed(layout), "olmo", tmp_path / "out"), []
        for path in sorted(out.glob("token_ids_part_*-train-*.npy")):
            ids, mask = np.fromfile(path, np.uint16), path.with_name(path.name.replace("token_ids", "labels_mask"))
            assert mask.exists() == (layout == "chat")
            learned = np.fromfile(mask, np.uint8) if mask.exists() else np.ones(len(ids), np.uint8)
            for line in gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode().splitlines():
                start, end = map(int, line.split(","))
                read.append((ids[start:end].tolist(), learned[start:end].tolist()))
        assert read == list(chain.from_iterable(segments(packed(layout))))

    @pytest.mark.parametrize(("size", "bytes_each"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4), (2**31 - 1, 4)])
    def test_ids_have_the_smallest_unsigned_type_for_the_vocabulary(self, size: int, bytes_each: int) -> None:
        manifest = read_manifest(reviews())
        facts = dataclasses.replace(manifest.tokenizer, vocab_size=size)
        writer = olmo.OlmoWriter(
            dataclasses.replace(manifest, tokenizer=facts), ExportSettings(to="olmo", output="out", dropped=("label",))
        )
        rows = {name: values[:1] % 200 for name, values in read_rows(reviews(), "train").items()}
        (ids,) = documents_of(rows)
        assert len(writer.files(iter([rows]))["token_ids_part_{}.npy"]) == bytes_each * len(ids)

    @pytest.mark.parametrize(
        ("texts", "line"),
        [
            (["a b", "c d e"], ""),
            (["a [SEP] b", "c d e"], "1 of 2 documents have no EOS at the end, or one before the end"),
        ],
    )
    def test_a_line_counts_documents_that_olmo_core_cuts_elsewhere(self, tmp_path: Path, texts: Any, line: str) -> None:
        pq.write_table(pa.table({"text": texts}), tmp_path / "train.parquet")
        root = built(tmp_path / "train.parquet", layout="pack")
        for _ in range(2):  # the second time from the receipts
            outcome = building.command("export", root, "--to", "olmo", "--output", tmp_path / "out")
            assert (line in outcome.err) if line else ("EOS" not in outcome.err)


class TestTFRecord:
    def test_names_and_features_are_those_asked_for(self, tmp_path: Path) -> None:
        renamed = ("--rename", "attention_mask=input_mask", "--rename", "label=label_ids", "--drop", "token_type_ids")
        out = exported(reviews(), "tfrecord", tmp_path / "out", *renamed)
        chosen = {"input_ids": "input_ids", "attention_mask": "input_mask", "label": "label_ids"}
        schema, rows = read_manifest(reviews()).schema, read_rows(reviews(), "validation")
        new = Schema(tuple(dataclasses.replace(schema[old], name=chosen[old]) for old in schema.names if old in chosen))
        contents = [path.read_bytes() for path in sorted(out.glob("*-validation-*.tfrecord"))]
        parts = [examples.decode(frames.messages_of(content), new, place="") for content in contents]
        for old, name in chosen.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), rows[old])
        assert (out / "label_ids.labels.txt").read_text() == "negative\npositive\n"

    def test_a_gzip_dataset_is_one_that_tfds_opens(self, tmp_path: Path) -> None:
        root = built(REVIEWS, label_column="label", compression="gzip")
        out = exported(root, "tfrecord", tmp_path / "out")
        assert (out / "dataset_info.json").exists()
        assert all(path.suffix == ".tfrecord" for path in out.glob("*-train-*"))


def test_tags_are_left_out_of_the_loss_as_model_garden_does_it() -> None:
    columns = {"input_ids": np.array([[2, 5, 0]]), "tags": np.array([[0, 3, 0]]), "tag_mask": np.array([[0, 1, 0]])}
    features = (
        Feature(name="input_ids", dtype="int64", shape=(3,), role="token_ids"),
        Feature(name="tags", dtype="int64", shape=(3,), role="token_labels"),
        Feature(name="tag_mask", dtype="int64", shape=(3,), role="token_label_mask"),
    )
    manifest = dataclasses.replace(read_manifest(reviews()), schema=Schema(features))
    settings = ExportSettings(to="tfrecord", output="out", dropped=("tag_mask",), renamed=(("tags", "label_ids"),))
    writer = example_files.TfrecordWriter(manifest, settings)
    content = writer.files(iter([columns]))["{}.tfrecord"]
    decoded = examples.decode(frames.messages_of(content), writer.schema, place="")
    assert decoded["label_ids"].tolist() == [[-1, 3, -1]]


def test_files_of_an_appended_dataset_are_numbered_anew(tmp_path: Path) -> None:
    for first, stop, append in ((0, 30, []), (30, 50, ["--append"])):
        texts = {"text": [f"row {row} of a few" for row in range(first, stop)]}
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.table(texts), tmp_path / "data" / f"train-{first:02d}.parquet")
        options = building.options(tmp_path / "out", shard_size="1kB")
        outcome = building.command("build", tmp_path / "data", *options, *append)
        assert outcome.status == 0, outcome.err
    out = exported(tmp_path / "out", "arrayrecord", tmp_path / "records")
    names = sorted(path.name.partition("-train-")[2] for path in out.glob("*.array_record"))
    assert names == [f"{index:05d}-of-{len(names):05d}.array_record" for index in range(len(names))]
    assert (out / "dataset_info.json").exists()


def test_rows_of_several_lengths_are_exported(tmp_path: Path) -> None:
    root = built(REVIEWS, label_column="label", bucket_lengths="16,32")
    data = load(exported(root, "parquet", tmp_path / "out"), tmp_path / "cache")
    assert len(data["train"]) == read_manifest(root).splits["train"].num_examples
    assert max(map(len, data["train"]["input_ids"])) > 16
