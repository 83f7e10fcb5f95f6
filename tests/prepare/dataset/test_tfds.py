"""Without this library: TFDS opens what we wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.dataset import tfds
from tests import building
from tests.building import REVIEWS, built, read_manifest, read_rows, reviews

# TFDS asks protobuf for a field's label, which protobuf 6 and later deprecate.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning"),
    pytest.mark.slow,  # TFDS and TensorFlow take seconds to import
]


def open_builder(root: Path) -> Any:
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    return tensorflow_datasets.builder_from_directory(str(root))


def tfds_rows(builder: Any, split: str) -> dict[str, np.ndarray]:
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    options = tensorflow_datasets.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    (rows,) = builder.as_dataset(split=split, shuffle_files=False, read_config=options, batch_size=1000)
    return {name: values.numpy() for name, values in rows.items()}


@pytest.mark.parametrize("changes", [{"label_column": "label"}, {"layout": "concat"}], ids=["pad", "concat"])
def test_tfds_gives_the_rows_of_each_split(changes: dict[str, str]) -> None:
    root = built(REVIEWS, **changes)
    builder = open_builder(root)
    facts = read_manifest(root)
    assert len(facts.splits["train"].shards) > 1
    assert set(builder.info.splits) == {"train", "validation"}
    for split in facts.splits:
        assert builder.info.splits[split].num_examples == facts.splits[split].num_examples
        assert builder.info.splits[split].num_bytes == facts.splits[split].num_bytes
        rows, expected = tfds_rows(builder, split), read_rows(root, split)
        assert rows.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(rows[name], values, err_msg=name)


def test_label_names_of_several_lines_stay_one_name_each(tmp_path: Path) -> None:
    names = ["a\nb", " ", "c  d", "é"]
    data = building.source(tmp_path / "data", train=[{"text": "x", "label": name} for name in names])
    root = built(data, label_column="label")
    assert read_manifest(root).label_names == (" ", "a\nb", "c  d", "é")
    assert open_builder(root).info.features["label"].names == ["_", "a b", "c d", "é"]


def test_kept_columns_have_their_shapes_and_dtypes(tmp_path: Path) -> None:
    rows = [{"text": "x", "score": i / 3, "vector": [i, i + 1]} for i in range(3)]
    root = built(building.source(tmp_path / "data", train=rows), keep_column=("score", "vector"), no_shuffle=True)
    builder = open_builder(root)
    assert builder.info.features["vector"].shape == (2,)
    columns = tfds_rows(builder, "train")
    np.testing.assert_array_equal(columns["score"], np.array([0, 1 / 3, 2 / 3], np.float32))
    np.testing.assert_array_equal(columns["vector"], [[0, 1], [1, 2], [2, 3]])


def test_kept_text_is_text_and_kept_bytes_are_a_string_tensor(tmp_path: Path) -> None:
    blobs = [b"\xff\x00", b"", b"a"]
    pq.write_table(pa.table({"text": ["x"] * 3, "uid": ["é", "", "c"], "blob": blobs}), tmp_path / "train.parquet")
    builder = open_builder(built(tmp_path, keep_column=("uid", "blob"), no_shuffle=True))
    assert type(builder.info.features["uid"]).__name__ == "Text"
    rows = tfds_rows(builder, "train")
    assert [value.decode() for value in rows["uid"]] == ["é", "", "c"]
    assert rows["blob"].tolist() == blobs


@pytest.mark.parametrize("name", ["a-b", "x.y+z", "1_t"])
def test_tfds_finds_shards_under_any_name_that_we_allow(name: str) -> None:
    assert len(tfds_rows(open_builder(reviews(name=name)), "train")["label"]) == 320


def test_a_gzip_dataset_does_not_claim_to_be_one_that_tfds_can_read() -> None:
    root = reviews(compression="gzip")
    assert tfds.files(read_manifest(root)) == {}
    with pytest.raises(Exception, match=r"dataset_info\.json"):
        open_builder(root)
