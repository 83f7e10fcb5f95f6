"""Sources on gs://: found by a few listings, rows by counted requests, whatever fails or is replaced on the way."""

import io
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.prepare import storage
from pipelines.prepare.options.config import SourceConfig
from pipelines.prepare.sources.parquet import row_groups
from pipelines.prepare.sources.resolve import data_files
from pipelines.prepare.sources.resolve.data_files import DataFile
from pipelines.prepare.sources.resolve.library import SourceListing
from pipelines.prepare.sources.resolve.resolve import resolve
from tests.cloud.emulator import Gcs
from tests.cloud.proxy import Faults, Proxy, refusal, through
from tests.prepare.sources.stored import in_place
from tfrecord_io.errors import SourceError

TABLE = pa.table(
    {"text": [f"row {row} {os.urandom(500).hex()}" for row in range(1_000)], "blob": [os.urandom(5_000)] * 1_000}
)


def uploaded(gcs: Gcs, bucket: str, name: str, table: pa.Table = TABLE) -> DataFile:
    content = io.BytesIO()
    pq.write_table(table, content, row_group_size=100, use_dictionary=False, write_statistics=False)
    gcs.write(bucket, name, content.getvalue())
    fs, inner = storage.file_system(path := f"gs://{bucket}/{name}")
    info = fs.info(inner)
    return DataFile(path=path, name=name, size=info["size"], version=data_files.version_of(info))


def texts(file: DataFile, *row_ranges: tuple[int, int]) -> list[str]:
    read = row_groups.read_rows(
        in_place(file, columns=["text"]).pieces(row_ranges), ["text"], types=TABLE.schema, addresses={}
    )
    return [text for _, batch in read for text in batch.column(0).to_pylist()]


def test_a_group_takes_one_request_of_its_columns_bytes(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = uploaded(gcs, bucket, "counted.parquet")
    with through(gcs, Faults(), monkeypatch) as proxy:
        rows = [*range(250, 260), *range(940, 950)]
        assert texts(file, (250, 260), (940, 950)) == TABLE["text"].take(rows).to_pylist()
        counted = len(proxy.requests)
    assert counted == 4, "a footer for the plan, one for the reader, and two groups"


@pytest.mark.slow
@pytest.mark.usefixtures("short_pauses")
def test_rows_arrive_whole_through_faults(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = uploaded(gcs, bucket, "faults.parquet")
    faults = Faults(unavailable=0.3, cut_downloads=0.3)
    with through(gcs, faults, monkeypatch) as proxy:
        assert texts(file, (0, 1_000)) == TABLE["text"].to_pylist()
        assert proxy.counts["cut_downloads"] > 0


def test_an_object_that_another_one_replaced_is_refused(gcs: Gcs, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = uploaded(gcs, bucket, "replaced.parquet")
    pieces = in_place(file).pieces([(999, 1_000)])
    fs, _ = storage.file_system(file.path)
    cat_file = fs.cat_file

    def of_generation(path: str, *, generation: str, **options: object) -> bytes:
        # The emulator serves every generation with the one that is there.
        if fs.info(path)["generation"] != generation:
            raise FileNotFoundError(path)
        content: bytes = cat_file(path, generation=generation, **options)
        return content

    monkeypatch.setattr(fs, "cat_file", of_generation)
    assert len(list(row_groups.read_rows(pieces, ["text"], types=TABLE.schema, addresses={}))) == 1
    uploaded(gcs, bucket, "replaced.parquet", TABLE.slice(1))
    with pytest.raises(SourceError, match=r"replaced.parquet: has changed since the job was planned"):
        list(row_groups.read_rows(pieces, ["text"], types=TABLE.schema, addresses={}))


ROW = b'{"text": "a"}\n'
NAMES = [f"data/{split}/{number:03}.jsonl" for split in ("test", "train") for number in range(30)]


@pytest.fixture
def listed(gcs: Gcs) -> str:
    """Sixty files and some unrelated ones."""
    name = gcs.bucket()
    for path in (*NAMES, "data/.hidden/x.jsonl", "data/", "other/train.jsonl"):
        gcs.write(name, path, ROW)
    return name


def _resolve(address: str) -> SourceListing:
    return resolve(SourceConfig(dataset=address))


@pytest.mark.parametrize("address", ["gs://{}/data", "gs://{}/data/", "gs://{}/data/**/*.jsonl"])
def test_what_is_below_an_address_takes_no_request_per_file(machine: Proxy, listed: str, address: str) -> None:
    paths: list[str] = []
    machine.answer = lambda number, method, path: paths.append(path)
    listing = _resolve(address.format(listed))
    assert {split: [file.path for file in files] for split, files in listing.splits.items()} == {
        split: [f"gs://{listed}/data/{split}/{number:03}.jsonl" for number in range(30)] for split in ("train", "test")
    }
    assert all(file.version.isdecimal() and file.size == len(ROW) for some in listing.splits.values() for file in some)
    assert all(entry["mark"] for entry in listing.identity["files"])
    assert len(paths) < 12, paths
    assert not [path for path in paths if "000.jsonl" in path]


def test_the_content_is_the_same_dataset_wherever_it_lies(gcs: Gcs, listed: str) -> None:
    other = gcs.bucket()
    for name in NAMES:
        gcs.write(other, f"moved/{name}", ROW)
    before = _resolve(f"gs://{listed}/data").identity
    assert _resolve(f"gs://{other}/moved/data").identity == before
    gcs.write(other, f"moved/{NAMES[3]}", ROW.replace(b"a", b"b"))
    assert _resolve(f"gs://{other}/moved/data").identity != before


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_is_overloaded_is_waited_for(machine: Proxy, listed: str, status: int) -> None:
    machine.answer = lambda number, method, path: refusal(status) if number <= 20 else None
    assert list(_resolve(f"gs://{listed}/data").splits) == ["train", "test"]


@pytest.mark.parametrize("below", ["data", "data/*.jsonl", "data/train/000.jsonl"])
def test_a_listing_that_is_denied_says_what_to_ask_for(machine: Proxy, listed: str, below: str) -> None:
    message = (
        "me@x.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket."
    )
    machine.answer = lambda number, method, path: refusal(403, message)
    with pytest.raises(SourceError, match=r"does not have storage\.objects\.list.*; .*add-iam-policy-binding"):
        _resolve(f"gs://{listed}/{below}")
