"""One dataset, the same rows in every library: each line of the table in docs/how-to/read.md runs unchanged."""

import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import building
from tests.building import REPOSITORY
from tfrecord_io import random_access, reader

Row = Mapping[str, np.ndarray]

# TFDS asks protobuf for a field's label, which protobuf 6 and later deprecate.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning"),
    pytest.mark.slow,  # TFDS takes seconds to import
]


def table() -> dict[str, str]:
    page = (REPOSITORY / "docs" / "how-to" / "read.md").read_text(encoding="utf-8")
    section = page.partition("## The same rows in other libraries\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", section, re.M))


def rows_of(elements: Iterable[Any]) -> list[Row]:
    """The rows of rows, of batches, or of serialized Examples, without those that only fill up a batch."""
    import tensorflow as tf

    rows = []
    for element in elements:
        if not isinstance(element, Mapping):
            parts = tf.train.Example.FromString(element.numpy()).features.feature
            element = {name: values.int64_list.value for name, values in parts.items()}
        arrays = {name: np.asarray(values) for name, values in element.items()}
        batch = arrays if arrays["input_ids"].ndim == 2 else {name: values[None] for name, values in arrays.items()}
        rows += [{name: values[at] for name, values in batch.items()} for at in range(len(batch["input_ids"]))]
    return [row for row in rows if row.get("example_weight", 1)]


# Modules that each line uses besides this package, by the name in the line.
LIBRARIES: dict[str, dict[str, str]] = {
    "TensorFlow, this reader": {},
    "TensorFlow alone": {"tf": "tensorflow"},
    "TFDS": {"tfds": "tensorflow_datasets"},
    "Grain": {"grain": "grain"},
    "PyTorch": {"torch": "torch.utils.data"},
    "plain Python": {},
}


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    return building.read_rows(building.reviews(), "validation")


def in_one_order(rows: list[Row], names: Iterable[str]) -> np.ndarray:
    joined = np.stack([np.concatenate([row[name].reshape(-1) for name in names]) for row in rows]).astype(np.int64)
    return joined[np.lexsort(joined.T)]


def test_the_table_has_the_libraries_that_are_tested() -> None:
    assert set(table()) == set(LIBRARIES)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_row_is_the_same(library: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = LIBRARIES[library]
    for module in modules.values():
        pytest.importorskip(module)
    names = {name: importlib.import_module(module.partition(".")[0]) for name, module in modules.items()}
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "reviews").symlink_to(building.reviews())
    monkeypatch.chdir(tmp_path)
    rows = rows_of(eval(table()[library], {"reader": reader, "random_access": random_access, **names}))
    assert len(rows) == len(expected["label"]) == 80
    assert all(set(expected) <= set(row) for row in rows)
    np.testing.assert_array_equal(
        in_one_order(rows, expected),
        in_one_order([{name: expected[name][at] for name in expected} for at in range(80)], expected),
    )
