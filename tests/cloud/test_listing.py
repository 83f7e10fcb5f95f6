"""Datasets on Google Cloud Storage: found by a few listings, and told apart when they may not be listed."""

from __future__ import annotations

import pytest

from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.resolve import resolve
from tests.cloud.answering import Answer, Machine, refusal
from tests.cloud.emulator import Gcs
from tfrecord_io.errors import SourceError

ROW = b'{"text": "a"}\n'
NAMES = [f"data/{split}/{number:03}.jsonl" for split in ("test", "train") for number in range(30)]


@pytest.fixture
def bucket(gcs: Gcs) -> str:
    """With sixty files, and what stands beside them."""
    name = gcs.bucket()
    for path in (*NAMES, "data/.hidden/x.jsonl", "data/", "other/train.jsonl"):
        gcs.write(name, path, ROW)
    return name


def _resolve(address: str) -> SourceListing:
    return resolve(SourceConfig(dataset=address))


@pytest.mark.parametrize("address", ["gs://{}/data", "gs://{}/data/", "gs://{}/data/**/*.jsonl"])
def test_what_is_below_an_address_takes_no_request_per_file(machine: Machine, bucket: str, address: str) -> None:
    asked: list[str] = []

    def watch(number: int, method: str, path: str) -> Answer | None:
        asked.append(path)
        return None

    machine.answer = watch
    found = _resolve(address.format(bucket))
    assert {split: [file.path for file in files] for split, files in found.splits.items()} == {
        split: [f"gs://{bucket}/data/{split}/{number:03}.jsonl" for number in range(30)] for split in ("train", "test")
    }
    assert all(file.version.isdecimal() and file.size == len(ROW) for files in found.splits.values() for file in files)
    assert all(entry["mark"] for entry in found.identity["files"])
    assert len(asked) < 12, asked
    assert not [path for path in asked if "000.jsonl" in path]


def test_the_content_is_the_same_dataset_wherever_it_lies(gcs: Gcs, bucket: str) -> None:
    other = gcs.bucket()
    for name in NAMES:
        gcs.write(other, f"moved/{name}", ROW)
    before = _resolve(f"gs://{bucket}/data").identity
    assert _resolve(f"gs://{other}/moved/data").identity == before
    gcs.write(other, f"moved/{NAMES[3]}", ROW.replace(b"a", b"b"))
    assert _resolve(f"gs://{other}/moved/data").identity != before


def test_a_card_is_followed_there_too(gcs: Gcs, bucket: str) -> None:
    card = b"---\nconfigs:\n- config_name: x\n  data_files: [{split: some, path: test/00*.jsonl}]\n---\n"
    gcs.write(bucket, "data/README.md", card)
    assert [(split, len(files)) for split, files in _resolve(f"gs://{bucket}/data").splits.items()] == [("some", 10)]


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_is_overloaded_is_waited_for(machine: Machine, bucket: str, status: int) -> None:
    machine.answer = lambda number, method, path: refusal(status) if number <= 20 else None
    assert list(_resolve(f"gs://{bucket}/data").splits) == ["train", "test"]


@pytest.mark.parametrize("below", ["data", "data/*.jsonl", "data/train/000.jsonl"])
def test_a_listing_that_is_denied_says_what_to_ask_for(machine: Machine, bucket: str, below: str) -> None:
    said = "me@x.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket."
    machine.answer = lambda number, method, path: refusal(403, said)
    with pytest.raises(SourceError, match=r"does not have storage\.objects\.list") as caught:
        _resolve(f"gs://{bucket}/{below}")
    assert "add-iam-policy-binding" in caught.value.remedy


@pytest.mark.parametrize("below", ["none", "none/*.jsonl", "data/*.csv", "data/none.jsonl"])
def test_what_is_not_there_is_said(gcs: Gcs, bucket: str, below: str) -> None:
    with pytest.raises(SourceError, match="no such file or folder; check the path"):
        _resolve(f"gs://{bucket}/{below}")
