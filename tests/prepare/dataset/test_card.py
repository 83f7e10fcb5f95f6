"""The dataset card: what the hub reads in it, that it follows from the manifest, and that a user's own text stays."""

from __future__ import annotations

import fnmatch
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard

from pipelines.prepare.dataset import card
from tests import building
from tests.building import REVIEWS, built, read_manifest, reviews
from tests.support.speed import slow_but
from tfrecord_io import random_access

OWN = "# My own words\n"


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return Path(shutil.copytree(reviews(), tmp_path / "out"))


def front_matter(root: Path) -> dict[str, Any]:
    text = (root / card.FILE_NAME).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_hubs_library_reads_it() -> None:
    found = DatasetCard.load(str(reviews() / card.FILE_NAME)).data.to_dict()
    assert found["size_categories"] == ["n<1K"]
    assert found["tags"] == ["prep-tfrecords", "tfrecord", "tokenized"]
    assert "license" not in found, "the user's to choose"
    splits = read_manifest(reviews()).splits
    assert found["dataset_info"]["splits"] == [
        {"name": name, "num_bytes": split.num_bytes, "num_examples": split.num_examples}
        for name, split in splits.items()
    ]


@pytest.mark.parametrize(
    "options", slow_but([{}, {"compression": "gzip"}, {"bucket_lengths": "16,32", "max_length": None}], {})
)
def test_its_patterns_find_the_shards_of_each_split_and_no_others(options: dict[str, Any]) -> None:
    split = ("train=train[:50]", "train-2=train[50:]")
    root = built(REVIEWS, label_column="label", split=split, shard_size="5kB", **options)
    shards = building.shard_bytes(root)
    for each in front_matter(root)["configs"][0]["data_files"]:
        found = fnmatch.filter(shards, each["path"])
        assert found == sorted(shard.name for shard in read_manifest(root).splits[each["split"]].shards)


def test_it_says_what_the_manifest_says() -> None:
    facts = read_manifest(reviews())
    text = (reviews() / card.FILE_NAME).read_text()
    for said in (facts.fingerprint, facts.tokenizer.name, "`pad`, rows of 32 tokens", "`negative`, `positive`"):
        assert said in text
    for name, split in facts.splits.items():
        assert f"| `{name}` | {split.ledger.rows_in} | {split.num_examples} | {split.num_tokens:,} |" in text


def test_its_lines_of_python_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (reviews() / card.FILE_NAME).read_text().replace("PATH", str(reviews()))
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "random_access" in block)
    names: dict[str, Any] = {}
    exec(lines, names)
    assert len(names["rows"]) == 320


def test_buckets_are_read_one_length_at_a_time_and_not_by_tfds() -> None:
    root = built(REVIEWS, bucket_lengths="16,32", max_length=None)
    text = (root / card.FILE_NAME).read_text()
    assert f'random_access.open("PATH").bucket(16)["{next(iter(read_manifest(root).splits))}"]' in text
    assert "tensorflow_datasets" not in text
    assert random_access.open(root).bucket(16)


def test_it_follows_from_the_manifest_alone() -> None:
    assert (reviews() / card.FILE_NAME).read_bytes() == card.content(read_manifest(reviews()))


def test_texts_from_data_stay_text(tmp_path: Path) -> None:
    evil = "`</code>|<script>\n# x\u202e"
    data = building.source(tmp_path / "data", train=[{"text": "a", "label": evil}, {"text": "b", "label": "fine"}])
    text = (built(data, label_column="label") / card.FILE_NAME).read_text()
    assert "`'</code>\\|<script> # x\\u202e`" in text


def test_another_split_changes_it(tmp_path: Path) -> None:
    options = building.options(tmp_path / "out", label_column="label")
    for split in ("train", "validation"):
        assert building.command("build", REVIEWS, *options, "--split", split).status == 0
    names = [each["name"] for each in front_matter(tmp_path / "out")["dataset_info"]["splits"]]
    assert names == ["train", "validation"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_users_own_text_stays(finished: Path, overwrite: bool) -> None:
    (finished / card.FILE_NAME).write_text(OWN)
    (finished / "manifest.json").unlink()  # so that it is committed again
    options = building.options(finished, label_column="label")
    outcome = building.command("build", REVIEWS, *options, *(["--overwrite"] if overwrite else []))
    assert outcome.status == 0, outcome.err
    assert (finished / card.FILE_NAME).read_text() == OWN


def test_a_card_without_its_marker_is_the_users(finished: Path) -> None:
    path = finished / card.FILE_NAME
    own = path.read_text().replace(card.MARKER, "My words.")
    path.write_text(own)
    card.write(str(finished), read_manifest(finished), replacing=None)
    card.delete(str(finished))
    assert path.read_text() == own


def test_a_link_is_the_users(finished: Path, tmp_path: Path) -> None:
    (finished / card.FILE_NAME).rename(tmp_path / "card.md")
    (finished / card.FILE_NAME).symlink_to(tmp_path / "card.md")
    (tmp_path / "card.md").write_text(card.MARKER + "\n")
    card.write(str(finished), read_manifest(finished), replacing=None)
    card.delete(str(finished))
    assert (tmp_path / "card.md").read_text() == card.MARKER + "\n"


def test_starting_over_removes_our_own(finished: Path) -> None:
    card.delete(str(finished))
    assert not (finished / card.FILE_NAME).exists()
    card.delete(str(finished))


def test_verify_leaves_it_to_the_user(finished: Path) -> None:
    (finished / card.FILE_NAME).unlink()
    assert building.command("verify", finished).status == 0
