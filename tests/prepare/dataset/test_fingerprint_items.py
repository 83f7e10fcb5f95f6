"""The fingerprint covers what decides bytes, and nothing else."""

import dataclasses
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare.options.config import FunctionOption
from pipelines.prepare.sources.rows import user_functions
from tests import building
from tests.building import REVIEWS, Outcome, reviews
from tfrecord_io import manifest
from tfrecord_io.errors import ConfigError


def build(dataset: Path, output: Path, **options: Any) -> Outcome:
    return building.command("build", dataset, *building.options(output, **options))


@pytest.mark.parametrize(
    ("train", "test"),
    [([[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]]), ([1, 2], [1.5, 2.5]), (["a", "b"], [1, 2])],
    ids=["length", "number", "type"],
)
def test_a_second_split_cannot_change_the_form_of_records(tmp_path: Path, train: list[Any], test: list[Any]) -> None:
    for name, values in {"train": train, "test": test}.items():
        rows = pa.table({"text": ["one good story", "one bad story"], "v": values})
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(rows, tmp_path / "in" / f"{name}.parquet")
    files = tuple(f"{split}={tmp_path}/in/{split}.parquet" for split in ("train", "test"))
    options = {"keep_column": "v", "data_files": files}
    assert build(tmp_path / "in", tmp_path / "out", **options, split="train").status == 0
    before = building.files(tmp_path / "out")
    outcome = build(tmp_path / "in", tmp_path / "out", **options, split="test")
    assert outcome.status == 1
    assert "form.features[v]" in outcome.error[0]
    assert "another --output" in outcome.error[1]
    assert building.files(tmp_path / "out") == before
    assert building.command("verify", tmp_path / "out").status == 0


def test_a_second_split_cannot_change_the_names_of_classes(tmp_path: Path) -> None:
    for name, names in {"train": ["neg", "pos"], "test": ["pos", "neg"]}.items():
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
        rows = datasets.Dataset.from_dict({"text": ["one good story", "one bad story"], "label": [0, 1]}, features)
        rows.to_parquet(str(tmp_path / "in" / f"{name}-0.parquet"))
    options = {"label_column": "label"}
    assert build(tmp_path / "in", tmp_path / "out", **options, split="train").status == 0
    assert "form.classes: was" in build(tmp_path / "in", tmp_path / "out", **options, split="test").error[0]


def test_a_minor_version_of_the_format_orphans_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(reviews(), tmp_path / "out")
    major, _, minor = manifest.FORMAT_VERSION.partition(".")
    monkeypatch.setattr(manifest, "FORMAT_VERSION", f"{major}.{int(minor) + 1}")
    outcome = build(REVIEWS, tmp_path / "out", label_column="label")
    assert outcome.status == 0, outcome.err
    assert building.shard_bytes(tmp_path / "out") == building.shard_bytes(reviews())


def test_libraries_are_in_it_by_what_they_decide() -> None:
    """Releases of transformers that give the same ids for the same files give the same dataset."""
    options = building.read_manifest(reviews()).options
    assert options["versions"].keys() == {"format", "algorithm"}
    assert len(options["ids"]) == len(options["tokenizer"]) == 64


def test_a_ready_function_is_known_by_its_version_and_what_it_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (fix,) = user_functions.locate([FunctionOption(kind="map", spec="fix_text")])
    (few,) = user_functions.locate([FunctionOption(kind="filter", spec="length(3, 9)")])
    (english,) = user_functions.locate([FunctionOption(kind="filter", spec="language(en)")])
    assert few.identity() == {"filter": "length(3, 9)", "version": "1"}
    assert fix.identity()["version"].startswith("1, ftfy ")
    assert ", lid.176.ftz " in english.identity()["version"]
    stored, before = [dataclasses.asdict(fix)], fix.identity()
    monkeypatch.setattr(metadata, "version", lambda package: "0.0")
    assert fix.identity() != before
    with pytest.raises(ConfigError, match=r"fix_text has version 1, ftfy 0\.0 here, expected 1, ftfy "):
        user_functions.restore(stored, expected=[before], where="source.json")
