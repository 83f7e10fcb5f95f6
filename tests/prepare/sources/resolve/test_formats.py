"""Whatever `load_dataset` reads is read here: the same splits, features and rows, in the same order."""

import bz2
import gzip
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.rows import opening
from tests import building
from tests.prepare.sources.stored import rows_in
from tests.support import seams
from tfrecord_io.errors import SourceError

ROWS = [{"text": f"row {row} é", "label": row % 3, "more": {"a": [row, None]}} for row in range(25)]
PLAIN = [{"text": row["text"], "label": row["label"]} for row in ROWS]
CSV = "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in PLAIN)
LINES = "".join(f"{row['text']}\n" + "\n" * (row["label"] == 1) for row in PLAIN)
CONLL = "".join(f"word{row} NN B-X\nother NN O\n\n" for row in range(9))
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def _text(name: str, content: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def _zip(name: str, files: Mapping[str, bytes]) -> Callable[[Path], None]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for inner, content in files.items():
            opened.writestr(inner, content)
    return _text(name, packed.getvalue())


def _tar(name: str, files: Mapping[str, bytes], mode: Literal["w:", "w:gz"] = "w:") -> Callable[[Path], None]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as opened:
        for inner, content in files.items():
            entry = tarfile.TarInfo(inner)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return _text(name, packed.getvalue())


def _parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "train.parquet", row_group_size=10)
    pq.write_table(pa.Table.from_pylist(ROWS[:4]), folder / "test.parquet")


VIEWS = pa.table(
    {
        "text": pa.array(["a", None, "é" * 40], pa.string_view()),
        "more": pa.array([{"a": "x" * 40}, {}, None], pa.struct({"a": pa.string_view()})),
    }
)


def _arrow(folder: Path, table: pa.Table | None = None, write: Callable[..., Any] = pa.ipc.new_stream) -> None:
    table = pa.Table.from_pylist(ROWS) if table is None else table
    with write(str(folder / "a.arrow"), table.schema) as opened:
        opened.write_table(table, max_chunksize=7)


def _hdf5(folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as opened:
        opened["text"] = [row["text"] for row in PLAIN]
        opened["label"] = [row["label"] for row in PLAIN]


def _images(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for row in range(4):
        image.new("RGB", (2, 2), (row, 0, 0)).save(folder / f"{row}.png")
    rows = [json.dumps({"file_name": f"{row}.png", "text": f"caption {row}"}) for row in range(4)]
    (folder / "metadata.jsonl").write_text("\n".join(rows))


def _card(folder: Path) -> None:
    names = "[{split: train, path: some/*.csv}, {split: test, path: other.csv}]"
    features = "[{name: text, dtype: string}, {name: label, dtype: {class_label: {names: [a, b, c]}}}]"
    configs = f"configs:\n- config_name: x\n  data_files: {names}\n"
    card = f"---\n{configs}dataset_info:\n- config_name: x\n  features: {features}\n---\n"
    for name in ("some/1.csv", "some/0.csv", "other.csv"):
        _text(name, CSV)(folder)
    (folder / "README.md").write_text(card)


SAMPLES = {"0.json": b'{"text": "one", "n": 1}', "1.json": b'{"text": "two", "n": 2}'}
# How each is written, and the options: of `load_dataset` and, where they have other names, of the source.
FORMATS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "json lines": (_text("a.jsonl", JSONL), {}),
    "json, an array": (_text("a.json", json.dumps(ROWS)), {}),
    "json, a field": (_text("a.json", json.dumps({"data": PLAIN})), {"field": "data"}),
    "json, packed": (_text("a.jsonl.gz", gzip.compress(JSONL)), {}),
    "json, mixed types": (_text("a.jsonl", '{"a": 1}\n{"a": "x"}\n{"a": [1]}\n'), {}),
    "csv": (_text("a.csv", CSV), {}),
    "csv, other separator": (_text("a.csv", CSV.replace(",", ";")), {"path": "csv", "delimiter": ";"}),
    "csv, packed": (_text("a.csv.bz2", bz2.compress(CSV.encode())), {}),
    "tsv": (_text("a.tsv", CSV.replace(",", "\t")), {}),
    "text": (_text("a.txt", LINES), {}),
    "text by paragraph": (_text("a.txt", LINES), {"sample_by": "paragraph"}),
    "text by document": (_text("a.txt", LINES), {"sample_by": "document"}),
    "parquet": (_parquet, {}),
    "parquet, string views": (lambda folder: pq.write_table(VIEWS, folder / "a.parquet"), {}),
    "arrow": (_arrow, {}),
    "arrow, string views": (lambda folder: _arrow(folder, VIEWS), {}),
    "arrow with a footer": (lambda folder: _arrow(folder, write=pa.ipc.new_file), {}),
    "conll": (_text("a.conll", CONLL), {}),
    "conllu": (_text("a.conllu", f"# about\n{CONLL}".replace(" ", "\t")), {}),
    "hdf5": (_hdf5, {}),
    "webdataset": (_tar("a.tar", SAMPLES), {}),
    "zip of json": (_zip("a.zip", {"x/0.jsonl": JSONL, "x/1.jsonl": JSONL}), {}),
    "zip of csv": (_zip("a.zip", {"0.csv": CSV.encode()}), {"path": "csv"}),
    "zip of text": (_zip("a.zip", {"0.txt": LINES.encode(), "1.txt": b"one"}), {"sample_by": "document"}),
    "tar of json": (_tar("a.tar", {"x/b.jsonl": JSONL, "c.jsonl": JSONL, "x/.a": b"!"}), {"path": "json"}),
    "tar of csv, packed": (_tar("a.tar.gz", {"1.csv": CSV.encode(), "0.csv": CSV.encode()}, "w:gz"), {"path": "csv"}),
    "tar of csv, tgz": (_tar("a.tgz", {"1.csv": CSV.encode(), "0.csv": CSV.encode()}, "w:gz"), {"path": "csv"}),
    "tar of text": (_tar("a.tar", {"0.txt": b"a\nb", "1.md": b"c"}), {"path": "text", "sample_by": "document"}),
    "images with a text column": (_images, {}),
    "split names": (lambda folder: [_text(f"{name}.csv", CSV)(folder) for name in ("train", "dev", "my-test")], {}),
    "folders of splits": (lambda folder: [_text(f"{name}/0.csv", CSV)(folder) for name in ("train", "test")], {}),
    "shards of splits": (lambda folder: [_text(f"data/{name}-00000-of-00001.csv", CSV)(folder) for name in "ab"], {}),
    "a card": (_card, {}),
    "files beside": (lambda folder: [_text(name, CSV)(folder) for name in ("a.csv", "b.csv", "notes.md")], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_is_read_as_load_dataset_reads_it(name: str, tmp_path: Path) -> None:
    write, options = FORMATS[name]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    options = dict(options)
    reader = options.pop("path", None)
    data = str(tmp_path / "data")
    where: dict[str, Any] = {"path": reader, "data_dir": data} if reader else {"path": data}
    expected = datasets.load_dataset(**where, cache_dir=str(tmp_path / "cache"), **options)
    named = {"sample_by": options.pop("sample_by", None), "format": reader}
    source = building.opened(
        SourceConfig(
            dataset=str(tmp_path / "data"),
            label_column="label",  # a column of CSV that nothing names is read as text
            source_options=tuple(f"{key}={value}" for key, value in options.items()),
            **named,
        )
    )
    assert_same(source, expected)


@pytest.mark.parametrize(
    ("name", "reader", "remedy"),
    [("a.xml", None, "correct the file"), ("a.pkl", "pandas", "correct the file"), ("a.zip", None, "unpack it")],
)
@pytest.mark.filterwarnings("ignore:The Pandas builder")
def test_what_load_dataset_cannot_read_is_refused(name: str, reader: str | None, remedy: str, tmp_path: Path) -> None:
    """`datasets` 5.2 opens no file as XML, runs no pickle, and reads no Parquet in archives."""
    _zip(name, {"a.parquet": b""})(tmp_path) if name.endswith("zip") else _text(name, "<a/>")(tmp_path)
    with pytest.raises((OSError, ValueError)):
        list(datasets.load_dataset(reader or str(tmp_path), data_dir=str(tmp_path), streaming=True)["train"])
    with pytest.raises(SourceError) as caught:
        building.opened(SourceConfig(dataset=str(tmp_path), format=reader))
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("member", ["0.csv::http:/localhost/1.csv", "./0.csv"])
def test_a_member_of_an_archive_that_reads_as_an_address_is_refused(member: str, tmp_path: Path) -> None:
    _tar("a.tar", {member: b"text\nx\n"})(tmp_path)
    with pytest.raises(SourceError, match=r"the archive has a file '.*', expected names such as .*; unpack"):
        building.opened(SourceConfig(dataset=str(tmp_path), format="csv"))


def test_parquet_in_a_tar_is_to_be_unpacked(tmp_path: Path) -> None:
    _tar("a.tar", {"a.parquet": b""})(tmp_path)
    with pytest.raises(SourceError) as caught:
        building.opened(SourceConfig(dataset=str(tmp_path), format="parquet"))
    assert caught.value.remedy.startswith("unpack it")


def test_a_saved_dataset_is_read_as_load_from_disk_reads_it(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[*"abc"])})
    train = datasets.Dataset.from_list(PLAIN, features=features).shuffle(seed=3)
    datasets.DatasetDict({"my-split": train, "b": train.select([2, 1])}).save_to_disk(
        tmp_path / "data", num_shards={"my-split": 3, "b": 1}
    )
    assert_same(
        building.opened(SourceConfig(dataset=str(tmp_path / "data"))), datasets.load_from_disk(tmp_path / "data")
    )


def test_the_separator_holds_for_a_folder_too(tmp_path: Path) -> None:
    """`load_dataset(FOLDER, delimiter=";")` silently ignores it."""
    _text("a.csv", CSV.replace(",", ";"))(tmp_path)
    source = building.opened(SourceConfig(dataset=str(tmp_path), label_column="label", source_options=("delimiter=;",)))
    assert_same(
        source, datasets.load_dataset("csv", data_dir=str(tmp_path), delimiter=";", cache_dir=str(tmp_path / "cache"))
    )


def assert_same(source: Any, expected: Any) -> None:
    assert set(source.splits) == set(expected)
    for name, split in source.splits.items():
        held = expected[name].with_format("arrow")[:]
        # A view, or a large string, is another layout of the same values.
        known = {column: kind.text.replace("large_", "") for column, kind in source.columns[name].items()}
        told = {column: re.sub("_view|large_", "", repr(kind)) for column, kind in expected[name].features.items()}
        assert known == told
        batches = [batch for _, batch in split.read(split.ranges, held.column_names)]
        assert pa.Table.from_batches(batches).to_pylist() == held.to_pylist()


# A large file of lines is read in ranges: the same rows, wherever it is cut.

NUMBERED = [{"text": "x" * (row % 50) + "é", "label": row} for row in range(400)]
NUMBERED_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in NUMBERED)


@pytest.mark.parametrize(
    ("name", "content", "options", "shards"),
    [
        ("a.jsonl", NUMBERED_LINES, {}, 12),
        ("a.jsonl", NUMBERED_LINES.replace("\n", "\r\n")[:-2], {}, 13),
        ("a.txt", "a\n\n" + NUMBERED_LINES, {}, 12),
        ("a.txt", NUMBERED_LINES, {"sample_by": "document"}, 1),
        ("a.json", json.dumps(NUMBERED), {}, 1),
        ("a.csv", "text,label\n" + "a,1\n" * 500, {}, 1),
    ],
)
def test_ranges_have_the_rows_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, options: dict[str, Any], shards: int
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    config = SourceConfig(dataset=str(tmp_path), **options)
    expected = rows_in(tmp_path, **options)
    seams.put(monkeypatch, call_in_child=lambda function, *arguments: function(*arguments))  # in this process
    for part_bytes in (1_700, 1_701) if shards > 1 else (1_700,):
        seams.put(monkeypatch, large_file_bytes=100, line_part_bytes=part_bytes)
        stream = opening.open_source(config, columns=None).streams(["train"])["train"]
        assert stream.num_shards in (shards, shards + 1)
        assert set(stream.shard_files) == {0}, "each shard is known to be of the file"
        assert rows_in(tmp_path, **options) == expected
