"""The sources that answer badly, which other tests rely on: they do what they say, and otherwise serve."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from tests import building
from tests.cloud import emulator
from tests.support import faulty_sources
from tests.support.faulty_sources import DATASET, SHA

FILES: dict[str, bytes | Path] = {
    "data/train-0.jsonl": bytes(range(200)),
    "data/deep/test.jsonl": b"ab",
    "README.md": b"#",
}
_CLIENT = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem
name, commit = sys.argv[1:]
fs, root = HfFileSystem(), f"datasets/{name}@{commit}"
with fs.open(root + "/data/train-0.jsonl", "rb", block_size=16) as stream:
    stream.seek(100)
    part = stream.read(10)
api = HfApi()
infos = api.get_paths_info(name, ["data/deep/test.jsonl"], repo_type="dataset", revision=commit)
print(json.dumps({
    "sha": api.dataset_info(name).sha,
    "found": sorted(fs.find(root)),
    "listed": sorted(fs.ls(root + "/data", detail=False)),
    "glob": fs.glob(root + "/**/*.jsonl"),
    "part": list(part),
    "infos": [each.path for each in infos],
}))
"""


def get(address: str, **headers: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_hub_serves_ranges_and_counts_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with faulty_sources.hub({**FILES, "data/local.txt": tmp_path / "file"}) as server:
        address = f"{server.endpoint}/datasets/{DATASET}/resolve/{SHA}/data"
        assert get(f"{address}/local.txt") == (200, b"0123456789")
        assert get(f"{address}/local.txt", Range="bytes=2-4") == (206, b"234")
        assert get(f"{address}/local.txt", Range="bytes=-3") == (206, b"789")
        assert get(f"{address}/train-0.jsonl", Range="bytes=198-") == (206, bytes([198, 199]))
        assert get(f"{address}/none.txt")[0] == 404
    assert server.served == {"data/local.txt": 16, "data/train-0.jsonl": 2}


def test_a_busy_hub_refuses_a_number_of_times_and_then_serves() -> None:
    with faulty_sources.hub(FILES, refusals=(503, 429)) as server:
        address = f"{server.endpoint}/datasets/{DATASET}/resolve/{SHA}/data/deep/test.jsonl"
        assert get(f"{server.endpoint}/api/datasets/{DATASET}")[0] == 200
        assert [get(address)[0] for _ in range(4)] == [503, 429, 200, 200]


@pytest.mark.parametrize(("gated", "refusals"), [(False, (401, 401)), (True, (200, 403))])
def test_a_hub_keeps_from_strangers_what_is_private_or_gated(gated: bool, refusals: tuple[int, int]) -> None:
    with faulty_sources.hub(FILES, token="hf_secret", gated=gated) as server:
        addresses = [f"{server.endpoint}/api/datasets/{DATASET}"]
        addresses += [f"{server.endpoint}/datasets/{DATASET}/resolve/{SHA}/README.md"]
        assert tuple(get(address)[0] for address in addresses) == refusals
        assert [get(address, Authorization="Bearer hf_secret")[0] for address in addresses] == [200, 200]


def test_the_hubs_own_client_finds_and_reads_its_files(tmp_path: Path) -> None:
    with faulty_sources.hub(FILES) as server:
        env = {**building.environment(), **server.environment(), "HF_HOME": str(tmp_path)}
        ended = subprocess.run(
            [sys.executable, "-c", _CLIENT, DATASET, SHA], env=env, capture_output=True, text=True, timeout=120
        )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    root = f"datasets/{DATASET}@{SHA}"
    assert found["sha"] == SHA
    assert found["found"] == sorted(f"{root}/{name}" for name in FILES)
    assert found["listed"] == [f"{root}/data/deep", f"{root}/data/train-0.jsonl"]
    assert found["glob"] == [f"{root}/data/deep/test.jsonl", f"{root}/data/train-0.jsonl"]
    assert found["part"] == list(range(100, 110))
    assert found["infos"] == ["data/deep/test.jsonl"]
    assert server.served["data/train-0.jsonl"] < 200


@pytest.mark.slow
def test_a_bucket_that_denies_its_listing_still_gives_its_files() -> None:
    with emulator.running() as gcs:
        bucket = gcs.bucket()
        gcs.write(bucket, "data/a", b"content")
        with faulty_sources.denied_listing(gcs.endpoint) as endpoint:
            fs = emulator.client(endpoint)
            assert fs.cat_file(f"{bucket}/data/a") == b"content"
            with pytest.raises(OSError, match=r"storage\.objects\.list"):
                fs.ls(f"{bucket}/data")


def test_a_truncated_file_ends_in_the_middle() -> None:
    rows = [{"text": f"row {number}"} for number in range(3000)]
    content = faulty_sources.truncated_zst(rows)
    with pytest.raises(zstd.ZstdError):
        zstd.decompress(content)
    assert zstd.decompress(faulty_sources.zst(rows)) == faulty_sources.json_lines(rows)
