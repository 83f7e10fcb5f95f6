"""Every way of naming a dataset gives the rows that `datasets` itself gives, in the same order."""

from __future__ import annotations

import bz2
import gc
import gzip
import json
import logging
import lzma
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.prepare.arrow_files import ArrowFiles
from pipelines.prepare.columns import sizes_of
from pipelines.prepare.config import SourceConfig
from pipelines.prepare.loading import open_source
from pipelines.prepare.opened import Source, SplitSource
from tfrecord_io.errors import SourceError, SplitNotFoundError

TEXTS = [f"row {index} é" for index in range(30)]


def _open(dataset: Path | str, **options: Any) -> Source:
    return open_source(SourceConfig(dataset=str(dataset), **options))


def _texts(split: SplitSource, column: str = "text") -> list[str]:
    return [text for _, batch in split.read(split.ranges, [column]) for text in batch.column(0).to_pylist()]


def _jsonl(texts: Sequence[str] = TEXTS) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def _csv(texts: Sequence[str], separator: str = ",") -> bytes:
    return "".join(f"{text}{separator}{index}\n" for index, text in enumerate(["text", *texts])).encode()


def _arrow(path: Path, opener: Callable[..., Any]) -> None:
    table = pa.table({"text": TEXTS})
    with opener(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def _write(path: Path) -> Path:
    """A file that holds TEXTS, of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {".jsonl": _jsonl(), ".ndjson": _jsonl(), ".csv": _csv(TEXTS), ".tsv": _csv(TEXTS, "\t")}
    plain[".txt"] = "".join(f"{text}\n" for text in TEXTS).encode()
    plain[".json"] = json.dumps([{"text": text} for text in TEXTS]).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.compress,
    }
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS}), path, row_group_size=8)
    elif path.suffix in packers:
        path.write_bytes(packers[path.suffix](plain[Path(path.stem).suffix]))
    else:
        path.write_bytes(plain[path.suffix])
    return path


@pytest.mark.parametrize(
    "name",
    [
        *("a.parquet", "a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv", "a.txt"),
        *("a.jsonl.gz", "a.csv.gz", "a.tsv.gz", "a.txt.gz", "a.jsonl.bz2"),
    ],
)
def test_a_file_of_each_kind_gives_its_rows_as_split_train(tmp_path: Path, name: str) -> None:
    source = _open(_write(tmp_path / name))
    assert list(source.splits) == ["train"]
    assert _texts(source.splits["train"]) == TEXTS


@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_both_formats_of_arrow_files_are_read(tmp_path: Path, opener: Callable[..., Any]) -> None:
    _arrow(tmp_path / "a.arrow", opener)
    assert _texts(_open(tmp_path / "a.arrow").splits["train"]) == TEXTS


def test_several_files_of_one_split_are_joined_in_the_order_of_their_names(tmp_path: Path) -> None:
    for index, name in enumerate(["train-00001-of-00002.jsonl", "train-00000-of-00002.jsonl"]):
        (tmp_path / name).write_bytes(_jsonl(TEXTS[index * 10 : index * 10 + 10]))
    assert _texts(_open(tmp_path / "*.jsonl").splits["train"]) == TEXTS[10:20] + TEXTS[:10]


@pytest.mark.parametrize("other", ["./a.jsonl", "../here/a.jsonl", "{}/a.jsonl", "*.jsonl", "."])
def test_a_file_that_is_named_in_two_ways_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    here = tmp_path / "here"
    _write(here / "a.jsonl")
    monkeypatch.chdir(here)
    assert _texts(_open("a.jsonl", more=(other.format(here),)).splits["train"]) == TEXTS


def test_a_folder_is_searched_in_depth_without_hidden_files_and_metadata(tmp_path: Path) -> None:
    for name in ("a/b/train.jsonl", "a/test.jsonl", ".cache/train.jsonl", "a/.train.jsonl"):
        _write(tmp_path / name)
    (tmp_path / "a/dataset_info.json").write_text("{}")
    (tmp_path / "README.md").write_text("not data")
    source = _open(tmp_path)
    assert {name: split.num_rows for name, split in source.splits.items()} == {"train": 30, "test": 30}


@pytest.mark.parametrize("left", [".prep/lock", "manifest.json"])
def test_an_output_below_the_source_is_no_part_of_it(tmp_path: Path, left: str) -> None:
    _write(tmp_path / "train.jsonl")
    for name in (left, "features.json", "rejected/train-00000.jsonl", "x-train-00000-of-00001.tfrecord"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text('{"text": "not of the source"}')
    assert _texts(_open(tmp_path).splits["train"]) == TEXTS


def test_a_manifest_alone_does_not_make_a_folder_an_output(tmp_path: Path) -> None:
    _write(tmp_path / "a/rows.jsonl")
    (tmp_path / "a/manifest.json").write_text('{"text": "first"}')
    assert _texts(_open(tmp_path).splits["train"]) == ["first", *TEXTS]


def test_an_output_is_no_source_itself(tmp_path: Path) -> None:
    for name in ("manifest.json", "features.json", "x-train-00000-of-00001.tfrecord"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(
        SourceError, match=r"a dataset that a build made, .*; name the files that it is to be made from"
    ):
        _open(tmp_path)


def test_a_folder_below_a_hidden_one_is_read_when_it_is_named(tmp_path: Path) -> None:
    _write(tmp_path / ".hidden/data/train.jsonl")
    assert _texts(_open(tmp_path / ".hidden/data").splits["train"]) == TEXTS


def test_a_recursive_glob_reaches_nested_files(tmp_path: Path) -> None:
    _write(tmp_path / "x/y/part.csv")
    assert _texts(_open(tmp_path / "**/*.csv").splits["train"]) == TEXTS


def test_signs_of_a_glob_in_existing_names_mean_themselves(tmp_path: Path) -> None:
    path = _write(tmp_path / "v[1]/train[2]*.jsonl")
    assert _texts(_open(path).splits["train"]) == TEXTS
    assert _texts(_open(path.parent).splits["train"]) == TEXTS


def test_a_file_url_is_read_like_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.jsonl")
    source = _open(f"file://{path}")
    assert _texts(source.splits["train"]) == TEXTS
    path.write_bytes(_jsonl(["other"]))
    assert _open(f"file://{path}").identity != source.identity


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00002.jsonl", "train"),
        ("my_training_set.jsonl", "train"),
        ("dev.jsonl", "validation"),
        ("en.valid.jsonl", "validation"),
        ("val_1.jsonl", "validation"),
        ("eval.jsonl", "test"),
        ("latest.jsonl", "train"),  # a split is a whole word
        ("device.jsonl", "train"),
    ],
)
def test_a_file_name_says_its_split_as_a_word(tmp_path: Path, name: str, split: str) -> None:
    assert list(_open(_write(tmp_path / name)).splits) == [split]


def _dataset(texts: Sequence[str] = TEXTS) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_a_saved_dataset_is_read_from_its_own_files(tmp_path: Path) -> None:
    _dataset().save_to_disk(tmp_path / "saved", num_shards=3)
    source = _open(tmp_path / "saved")
    assert _texts(source.splits["train"]) == TEXTS
    files = source.splits["train"].files
    assert isinstance(files, ArrowFiles)
    assert all(path.startswith(str(tmp_path)) for path in files.paths)


def test_a_dataset_that_was_shuffled_and_filtered_before_saving_keeps_that_order(tmp_path: Path) -> None:
    made = _dataset().shuffle(seed=3).filter(lambda row: "1" in row["text"], keep_in_memory=True)
    made.save_to_disk(tmp_path / "saved")
    assert made["text"][:] != sorted(made["text"][:])
    assert _texts(_open(tmp_path / "saved").splits["train"]) == made["text"][:]


def test_a_dataset_that_was_sliced_before_saving_has_only_that_slice(tmp_path: Path) -> None:
    _dataset().select(range(5, 9)).save_to_disk(tmp_path / "saved")
    assert _texts(_open(tmp_path / "saved").splits["train"]) == TEXTS[5:9]


def test_a_saved_dataset_dict_gives_every_split_under_its_name(tmp_path: Path) -> None:
    splits = {"train": _dataset(TEXTS[:20]), "my-split.v2": _dataset(TEXTS[20:])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    source = _open(tmp_path / "saved")
    assert {name: _texts(split) for name, split in source.splits.items()} == {
        "train": TEXTS[:20],
        "my-split.v2": TEXTS[20:],
    }


@pytest.mark.parametrize(
    ("spec", "name"), [("test[:3]", "test"), ("test[:3]+test[5:6]", "test"), ("train+test", "train")]
)
def test_a_saved_slice_has_the_name_of_its_split(tmp_path: Path, spec: str, name: str) -> None:
    files = {split: str(_write(tmp_path / f"{split}.jsonl")) for split in ("train", "test")}
    made = datasets.load_dataset("json", data_files=files, split=spec)
    made.save_to_disk(tmp_path / "saved")
    source = _open(tmp_path / "saved")
    assert list(source.splits) == [name]
    assert _texts(source.splits[name]) == made["text"][:]


def test_a_split_name_that_cannot_be_a_file_name_is_refused(tmp_path: Path) -> None:
    datasets.DatasetDict({"../up": _dataset()}).save_to_disk(tmp_path / "a" / "saved")
    with pytest.raises(SourceError, match=r"split '\.\./up'.*rename the split"):
        _open(tmp_path / "a" / "saved")


@pytest.mark.parametrize(
    "spec",
    [
        *("train", "train[:10%]", "train[5:7]+train[1:3]", "train[:5]+train[3:8]", "train[-4:]", "train[33%:67%]"),
        *("train[7:]", "train[:-25]", "train[:1]+train[:1]", "train[90%:]+train[:10%]+train[:50%]"),
    ],
)
def test_slicing_gives_the_rows_of_datasets_in_their_order(tmp_path: Path, spec: str) -> None:
    files = []
    for index in range(3):  # slices run across files
        files.append(tmp_path / f"train-{index}.jsonl")
        files[-1].write_bytes(_jsonl(TEXTS[index * 10 : index * 10 + 10]))
    expected = datasets.load_dataset("json", data_files={"train": [str(path) for path in files]}, split=spec)
    split = _open(tmp_path / "*.jsonl", splits=(spec,)).splits["train"]
    assert _texts(split) == expected["text"][:]
    assert split.num_rows == len(expected)


def test_row_numbers_are_those_of_the_whole_split(tmp_path: Path) -> None:
    split = _open(_write(tmp_path / "a.jsonl"), splits=("train[20:22]+train[3:5]",)).splits["train"]
    assert [(row, batch.num_rows) for row, batch in split.read(split.ranges, ["text"])] == [(20, 2), (3, 2)]
    parts = split.read(split.ranges, ["text"], unread=["text"], in_parts=True)
    assert [(row, sizes_of(batch, ["text"]).tolist()) for row, batch in parts] == [(20, [9, 9]), (3, [8, 8])]


def test_limit_takes_the_first_rows_of_what_was_asked_for(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl")
    assert _texts(_open(path, limit=4).splits["train"]) == TEXTS[:4]
    sliced = _open(path, splits=("train[5:7]+train[1:3]",), limit=3).splits["train"]
    assert _texts(sliced) == [TEXTS[5], TEXTS[6], TEXTS[1]]
    assert _texts(_open(path, limit=1000).splits["train"]) == TEXTS


def test_only_the_splits_that_are_asked_for_are_chosen_but_all_stay_known(tmp_path: Path) -> None:
    _write(tmp_path / "train.jsonl")
    _write(tmp_path / "test.jsonl")
    source = _open(tmp_path, splits=("test[:2]",))
    assert list(source.splits) == ["test"]
    assert {name: split.num_rows for name, split in source.all_splits.items()} == {"train": 30, "test": 30}


def test_an_empty_split_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = datasets.Features({"text": datasets.Value("string")})
    empty = datasets.Dataset.from_dict({"text": []}, features=features)
    datasets.DatasetDict({"train": _dataset(), "test": empty}).save_to_disk(tmp_path / "saved")
    with caplog.at_level(logging.WARNING, logger="pipelines"):
        assert list(_open(tmp_path / "saved").splits) == ["train"]
    assert "split 'test' has no rows and is left out" in caplog.text


@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "parquet"])
def test_an_empty_part_file_adds_no_rows_and_stops_nothing(tmp_path: Path, kind: str) -> None:
    _write(tmp_path / f"train-1.{kind}")
    if kind == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "train-0.parquet")
    else:
        (tmp_path / f"train-0.{kind}").write_bytes(b"")
    assert _texts(_open(tmp_path).splits["train"]) == TEXTS


def test_a_dataset_without_any_row_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(SourceError, match=r"a\.jsonl: no rows, expected at least one; "):
        _open(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tset", r"""Unknown split "tset".*did you mean 'test'\? choose among test, train"""),
        ("train[", r"--split 'train\[': .*choose among"),
        ("train[5:5]", r"has no rows, expected at least one"),
        ("train[200:]", r"has no rows, expected at least one"),
        ("tran[:3]", r"did you mean 'train'\? choose among test, train"),
        ("train,test", r"give each by itself: --split train --split test"),
        ("train+test", r"joins the splits \['test', 'train'\].*--split once for each"),
    ],
)
def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, spec: str, message: str) -> None:
    _write(tmp_path / "train.jsonl")
    _write(tmp_path / "test.jsonl")
    with pytest.raises(SplitNotFoundError, match=message):
        _open(tmp_path, splits=(spec,))


def test_a_split_given_twice_is_refused_with_the_way_to_join_its_parts(tmp_path: Path) -> None:
    with pytest.raises(SplitNotFoundError, match=r"was already given.*plus sign"):
        _open(_write(tmp_path / "a.jsonl"), splits=("train[:2]", "train[4:]"))


@pytest.mark.parametrize("name", ["missing.jsonl", "missing/*.csv", "missing/folder/of/data", "./missing"])
def test_a_path_that_is_not_there_is_a_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"no such file") as caught:
        _open(name if name.startswith("./") else tmp_path / name)
    assert caught.value.remedy


def test_a_folder_without_data_files_says_what_would_be_data(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("x")
    with pytest.raises(SourceError, match=r"no data file, expected \.arrow, \.csv"):
        _open(tmp_path)


@pytest.mark.parametrize("names", [("a.jsonl", "b.csv"), ("a.csv", "b.tsv"), ("a.parquet", "b.txt.gz")])
def test_files_of_two_kinds_are_not_mixed(tmp_path: Path, names: Sequence[str]) -> None:
    for name in names:
        _write(tmp_path / name)
    with pytest.raises(
        SourceError, match=r"files of several kinds: 1 \w+ \(such as a\..*, 1 .*, expected one"
    ) as caught:
        _open(tmp_path)
    for name, glob in zip(names, re.findall(r"'(.*?)'", caught.value.remedy), strict=True):
        assert sorted(Path(tmp_path).glob(glob.removeprefix(f"{tmp_path}/"))) == [tmp_path / name]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("a.xlsx", "save the sheet as CSV"),
        ("a.zip", "unpack it"),
        ("a.tfrecord", "made from"),
        ("a.doc", "other files"),
    ],
)
def test_a_file_of_an_unknown_kind_is_named_with_what_to_do(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(SourceError, match=f"{name}: a file of an unknown kind, expected .arrow, .csv") as caught:
        _open(tmp_path / name)
    assert remedy in caught.value.remedy


def test_several_paths_are_one_dataset(tmp_path: Path) -> None:
    """As where the shell has resolved a glob. The splits are those of the same files in a folder."""
    files = [str(_write(tmp_path / name)) for name in ("b/train.jsonl", "b/test.jsonl", "a/train.jsonl")]
    source = _open(files[0], more=tuple(files[1:]))
    assert {name: split.num_rows for name, split in source.splits.items()} == {"train": 60, "test": 30}
    assert source.files["train"] == sorted([files[0], files[2]])
    assert source.identity == _open(tmp_path / "*/*.jsonl").identity


@pytest.mark.parametrize("reader", ["json", "csv", "parquet", "text", "arrow", "imagefolder"])
def test_the_name_of_a_reader_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    """`datasets` would read whatever is in the current folder."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "train.jsonl")
    with pytest.raises(SourceError, match=f"'{reader}' is a reader of `datasets`, expected the files") as caught:
        _open(reader)
    assert "data/*." in caught.value.remedy
    _write(tmp_path / reader / "a.jsonl")
    assert _texts(_open(reader).splits["train"]) == TEXTS, "a folder of that name is the folder"


def test_a_misspelt_path_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    _write(tmp_path / "reviews" / "train.jsonl")
    with pytest.raises(SourceError, match="/reveiws: no such file or folder") as caught:
        _open(tmp_path / "reveiws")
    assert caught.value.remedy == f"did you mean {tmp_path / 'reviews'}?"
    with pytest.raises(SourceError, match=r"/trian\.jsonl: no such file") as caught:
        _open(tmp_path / "reviews" / "trian.jsonl")
    assert caught.value.remedy == f"did you mean {tmp_path / 'reviews' / 'train.jsonl'}?"


def test_a_misspelt_path_that_could_be_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "examples" / "reviews" / "train.jsonl")
    with pytest.raises(SourceError, match="examples/reveiws: no such file or folder") as caught:
        _open("examples/reveiws")
    assert caught.value.remedy.startswith("did you mean examples/reviews?")


def test_several_names_are_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="imdb: no such file, expected only files where several are named"):
        _open(_write(tmp_path / "a.jsonl"), more=("imdb",))


def _damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 8]) + content[middle + 8 :]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("bad.jsonl", _jsonl() + b'{"text": "a"\n', "JSON parse error"),
        ("bad.jsonl.gz", gzip.compress(_jsonl())[:-20], "ended before the end-of-stream marker"),
        ("bad.jsonl.gz", b"not packed", "Not a gzipped file"),
        ("bad.jsonl.bz2", bz2.compress(_jsonl())[:-20], "ended before the end-of-stream marker"),
        ("bad.jsonl.xz", _damaged(lzma.compress(_jsonl())), "Corrupt input data"),
        ("bad.jsonl.zst", zstandard.compress(_jsonl())[:-1], "it ends in the middle"),
        ("bad.csv.zst", zstandard.compress(b"text\n" + b"a\n" * 9) + zstandard.compress(b"b\n" * 9)[:-1], "middle"),
        ("bad.jsonl.zst", _damaged(zstandard.compress(_jsonl())), "zstd decompress"),
        ("bad.jsonl.zst", b"not packed", "Unknown frame descriptor"),
        ("bad.parquet", b"PAR1 no it is not" * 10, "Parquet"),
        ("bad.arrow", b"ARROW1 no it is not" * 10, "Arrow"),
        ("bad.csv", b'text,label\n"a",1\n"b",2,3\n', "Expected 2 fields in line 3, saw 3"),
        ("bad.txt", b"\xff\xfe\x00", r"not UTF-8, invalid start byte at b'\\xff"),
        ("latin.csv", "text\nun café noir\n".encode("latin-1"), r"not UTF-8, .* at b'\\xe9 noir.*iconv -f latin1 "),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, content: bytes, reason: str
) -> None:
    suffix = "".join(Path(name).suffixes)
    for good in ("a-good", "z-good"):
        if suffix == ".arrow":
            _arrow(tmp_path / f"{good}.arrow", pa.ipc.new_stream)
        else:
            _write(tmp_path / f"{good}{suffix}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=reason) as caught:
        _open(tmp_path)
    packed = suffix.endswith((".gz", ".bz2", ".xz", ".zst"))
    remedy = "the file is damaged, or was cut off" if packed else "mend the file"
    assert caught.value.remedy.startswith("convert it to UTF-8" if "UTF-8" in reason else remedy)
    if suffix != ".txt":  # the text reader of `datasets` does not say which file it was
        assert f"{tmp_path / name}: cannot be {'unpacked' if packed else 'read'}: " in caught.value.cause
    assert "Failed to" not in capfd.readouterr().err  # said once, by us


def test_files_whose_columns_differ_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"body": "b"}\n')
    with pytest.raises(SourceError, match="cannot be read"):
        _open(tmp_path)


def test_a_file_in_utf_16_is_not_taken_for_latin_1(tmp_path: Path) -> None:
    (tmp_path / "excel.csv").write_bytes("text\nun café noir\n".encode("utf-16"))
    with pytest.raises(SourceError, match=r"not UTF-8, .*`iconv -f utf-16 -t utf-8 OLD > NEW`"):
        _open(tmp_path)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # `datasets` leaves the file to its error
def test_csv_files_whose_columns_differ_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "a,1\n" * 12)
    (tmp_path / "b.csv").write_text("text;label\n" + "a;1\n" * 12)
    with pytest.raises(SourceError, match=r"its files have not the same columns \(.*'text;label'"):
        _open(tmp_path)
    gc.collect()


@pytest.mark.parametrize("option", [{"config": "en"}, {"revision": "main"}])
@pytest.mark.parametrize("saved", [False, True])
def test_options_of_hub_datasets_are_refused_for_files(tmp_path: Path, option: dict[str, str], saved: bool) -> None:
    if saved:
        _dataset().save_to_disk(tmp_path / "data")
    else:
        _write(tmp_path / "data/a.jsonl")
    with pytest.raises(SourceError, match="--config and --revision belong to hub datasets"):
        _open(tmp_path / "data", **option)


@pytest.mark.parametrize("saved", [False, True])
def test_identity_is_the_content_wherever_it_lies(tmp_path: Path, saved: bool) -> None:
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    if saved:
        datasets.DatasetDict({"train": _dataset(), "test": _dataset(TEXTS[:3])}).save_to_disk(first)
    else:
        _write(first / "train.jsonl")
        _write(first / "sub" / "test.jsonl")
    shutil.copytree(first, second)
    assert _open(first).identity == _open(second).identity
    assert str(tmp_path) not in json.dumps(dict(_open(first).identity))


def test_one_changed_byte_changes_the_identity(tmp_path: Path) -> None:
    path = _write(tmp_path / "train.jsonl")
    before = _open(path).identity
    content = bytearray(path.read_bytes())
    content[content.index(b"row 7") + 4] ^= 1
    path.write_bytes(content)
    assert _open(path).identity != before


def test_a_local_folder_is_never_run_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "data/train.jsonl")
    (tmp_path / "data/data.py").write_text("raise SystemExit('this code must not run')")
    seen: list[dict[str, Any]] = []
    load = datasets.load_dataset

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return load(*args, **options)

    monkeypatch.setattr(datasets, "load_dataset", watched)
    assert _texts(_open(tmp_path / "data").splits["train"]) == TEXTS
    assert len(seen) == 1
    assert "trust_remote_code" not in seen[0]


def test_a_split_travels_to_a_worker_as_paths(tmp_path: Path) -> None:
    split = _open(_write(tmp_path / "a.jsonl"), splits=("train[3:9]",)).splits["train"]
    packed = pickle.dumps(split)
    assert len(packed) < 1000
    assert _texts(pickle.loads(packed)) == TEXTS[3:9]
