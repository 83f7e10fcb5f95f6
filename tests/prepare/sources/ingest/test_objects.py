"""Objects as a source: the same rows are the same parts, and the same shards as from their `save_to_disk` folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.sources.ingest import objects
from prep_tfrecords import build, inspect, verify
from tests import building
from tfrecord_io.errors import ConfigError, OutputError, SourceError

FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
SMALL: dict[str, Any] = {"max_length": 16, "shard_size": "20kB", "workers": 1, "label_column": "label"}


def _columns(rows: int) -> dict[str, list[Any]]:
    return {"text": [f"text {n}, " + "good " * (n % 9) for n in range(rows)], "label": [n % 2 for n in range(rows)]}


def _dataset(rows: int = 300) -> datasets.Dataset:
    return datasets.Dataset.from_dict(_columns(rows), features=FEATURES)


def _generator() -> Any:
    yield from _dataset().to_list()


class _Polars:
    """The used part of a polars frame: rows as an Arrow table."""

    def to_arrow(self) -> pa.Table:
        return pa.table(_columns(300))


def _build(source: Any, output: Path, **options: Any) -> Any:
    return build(source, output=output, tokenizer=building.tokenizer(), **{**SMALL, **options})


@pytest.mark.slow
def test_a_dataset_and_its_saved_folder_give_equal_shards(tmp_path: Path) -> None:
    held = datasets.DatasetDict({"train": _dataset(2_345).shuffle(seed=1), "test": _dataset(50)})
    held["train"] = held["train"].filter(lambda row: len(row["text"]) > 12)
    held.save_to_disk(tmp_path / "saved")
    made = _build(held, tmp_path / "object", shard_size="40kB")
    _build(tmp_path / "saved", tmp_path / "folder", name="dataset", shard_size="40kB")
    assert len(made.manifest.splits["train"].shards) > 5
    assert building.shard_bytes(tmp_path / "object") == building.shard_bytes(tmp_path / "folder")
    assert made.manifest.schema.features == building.read_manifest(tmp_path / "folder").schema.features
    assert inspect(tmp_path / "object").manifest.label_names == ("bad", "good")
    assert verify(tmp_path / "object").damaged == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _dataset().to_iterable_dataset(num_shards=3),
        lambda: datasets.IterableDataset.from_generator(_generator, features=FEATURES),
        lambda: {"train": _dataset().with_format("numpy")},
        lambda: datasets.concatenate_datasets([_dataset().select(range(7)), _dataset().select(range(7, 300))]),
    ],
    ids=["stream", "generator", "dict", "concatenated"],
)
def test_equal_rows_are_the_same_source(tmp_path: Path, make: Callable[[], Any]) -> None:
    assert objects.store(make(), str(tmp_path)) == objects.store(_dataset(), str(tmp_path))


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame(_columns(300), index=range(5, 305)),
        lambda: pa.table(_columns(300)),
        _Polars,
        lambda: datasets.IterableDataset.from_generator(lambda: iter(pa.table(_columns(300)).to_pylist())),
    ],
    ids=["pandas", "pyarrow", "polars", "without features"],
)
def test_frames_and_tables_have_their_rows_and_types(tmp_path: Path, make: Callable[[], Any]) -> None:
    folder, splits = objects.store(make(), str(tmp_path))
    assert splits == ("train",)
    (name,) = os.listdir(folder)
    assert pq.read_table(os.path.join(folder, name)).to_pydict() == _columns(300)


def test_a_frame_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(SourceError, match=r"cannot become an Arrow table: .*; give each column .* a unique name"):
        objects.store(frame, str(tmp_path))


@pytest.mark.slow
def test_the_same_rows_go_on_with_a_build_and_others_are_refused(tmp_path: Path) -> None:
    _build(_dataset(), tmp_path / "out")
    again = _build(_dataset().to_iterable_dataset(), tmp_path / "out")
    assert again.shards_made == 0
    with pytest.raises(Exception, match="source") as raised:
        _build(_dataset(299), tmp_path / "out")
    assert type(raised.value).__name__ == "FingerprintMismatchError"


def test_the_tokenizer_can_be_an_object(tmp_path: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(building.tokenizer())
    made = build(_dataset(), output=tmp_path / "object", tokenizer=tokenizer, **SMALL)
    assert made.manifest.fingerprint == _build(_dataset(), tmp_path / "name").manifest.fingerprint
    assert made.manifest.tokenizer.name == building.tokenizer().name


def _traced(root: Path, *options: object) -> building.Outcome:
    return building.command("trace", root, "--split", "train", "--shard", 0, "--record", 3, *options)


def test_a_saved_folder_stands_in_for_an_object_that_is_gone(tmp_path: Path) -> None:
    _build(_dataset(), tmp_path / "out", shuffle=False)
    cause, remedy = _traced(tmp_path / "out").error
    assert "made from an object in Python, but its rows are not kept" in cause
    assert "save_to_disk" in remedy
    _dataset().save_to_disk(tmp_path / "saved")
    traced = _traced(tmp_path / "out", "--source", tmp_path / "saved")
    assert "1 row of an object given in Python" in traced.out, traced.err
    assert "train[3]\n" in traced.out
    shard = next((tmp_path / "out").glob("*.tfrecord"))
    before = shard.read_bytes()
    shard.write_bytes(before[:-9])
    repaired = building.command("verify", tmp_path / "out", "--repair", "--source", tmp_path / "saved")
    assert (repaired.status, shard.read_bytes()) == (0, before), repaired.err
    assert "its rows are not kept" in _traced(tmp_path / "out", "--source", building.REVIEWS).error[0]
    _dataset(299).save_to_disk(tmp_path / "other")
    assert "has changed" in _traced(tmp_path / "out", "--source", tmp_path / "other").error[0]


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ([{"text": "a"}], "builtins.list is not a dataset"),
        ({"a/b": _dataset()}, "the object: split 'a/b'"),
        ({}, "the object: no rows"),
        (_dataset().with_transform(lambda rows: rows), "has a transform"),
        (pd.DataFrame({"text": ["a", 1]}), "cannot become an Arrow table"),
        (datasets.IterableDataset.from_generator(lambda: iter([])), "no rows"),
        (datasets.IterableDataset.from_generator(lambda: (1 / row for row in [0])), "division by zero"),
        (datasets.IterableDataset.from_generator(lambda: iter(os.listdir("/none"))), "No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_built_from_is_refused(tmp_path: Path, source: Any, cause: str) -> None:
    with pytest.raises((ConfigError, SourceError)) as raised:
        objects.store(source, str(tmp_path))
    assert cause in raised.value.cause
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_written_are_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        objects.store(_dataset(), str(tmp_path / "none"))


@pytest.mark.parametrize(
    "options", [{"format": "json"}, {"revision": "main"}, {"append": True}], ids=lambda value: next(iter(value))
)
def test_options_of_files_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="with an object"):
        _build(_dataset(), tmp_path / "out", **options)
